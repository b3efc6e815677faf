// A small line chart. Drawn as SVG, so that it follows the theme and the width.

import {h, svg, fill} from './dom.js';
import {number} from './text.js';

function ticks(low, high, n) {
  const span = high - low || 1;
  const raw = span / n, power = 10 ** Math.floor(Math.log10(raw));
  const step = [1, 2, 5, 10].find((f) => f * power >= raw) * power;
  const out = [];
  for (let v = Math.ceil(low / step) * step; v <= high + step * 1e-6; v += step) out.push(v);
  return out;
}

const MAX_POINTS = 400;

// At most MAX_POINTS, keeping the ends: long runs have many steps.
function thin(points) {
  if (points.length <= MAX_POINTS) return points;
  const step = points.length / MAX_POINTS, out = [];
  for (let i = 0; i < points.length; i += step) out.push(points[Math.floor(i)]);
  out.push(points.at(-1));
  return out;
}

// chart({title, height, zero, x, format}): `zero` begins the axis at 0; `x` names the x axis and
// `format` spells a value. el.set([{name, points: [[x, y], …]}]) draws; points are ordered by x.
export function chart({title, height = 160, zero = false, x = '', format = (v) => number(v, v < 10 && v % 1 ? 2 : 0)}) {
  const legend = h('span.legend');
  const box = h('div.plot');
  const el = h('figure.chart', null, h('figcaption', null, h('span', null, title), legend), box);
  el.set = (series) => {
    series = series.map((s) => ({...s, points: thin(s.points.filter(([, y]) => Number.isFinite(y)))}));
    const all = series.flatMap((s) => s.points);
    fill(legend, series.map((s, i) => h(`span.s${i}`, null,
      series.length > 1 ? `${s.name} ` : '', s.points.length ? format(s.points.at(-1)[1]) : '–')));
    if (all.length < 2) {
      fill(box, h('p.muted', null, 'Waiting for values…'));
      return;
    }
    const xs = all.map((p) => p[0]), ys = all.map((p) => p[1]);
    const x0 = Math.min(...xs), x1 = Math.max(...xs);
    let y0 = zero ? 0 : Math.min(...ys), y1 = Math.max(...ys);
    if (y0 === y1) { y1 += Math.abs(y1) * 0.1 || 1; if (!zero) y0 -= Math.abs(y0) * 0.1 || 1; }
    const W = Math.max(240, box.clientWidth);  // letters keep their size at every width
    const left = 56, bottom = x ? 36 : 8;
    const px = (v) => left + (v - x0) / (x1 - x0 || 1) * (W - left - 8);
    const py = (v) => height - bottom - (v - y0) / (y1 - y0) * (height - bottom - 8);
    const summary = series.map((s) => s.points.length && `${s.name}: from ${format(s.points[0][1])} to ${format(s.points.at(-1)[1])}`);
    fill(box, svg('svg', {viewBox: `0 0 ${W} ${height}`, role: 'img', 'aria-label': `${title}. ${summary.filter(Boolean).join('; ')}`},
      ticks(y0, y1, 4).map((v) => [
        svg('line', {x1: left, x2: W - 8, y1: py(v), y2: py(v), class: 'grid'}),
        svg('text', {x: left - 6, y: py(v) + 4, 'text-anchor': 'end'}, format(v))]),
      x && ticks(x0, x1, 6).map((v) => svg('text', {x: px(v), y: height - 20, 'text-anchor': 'middle'}, number(v))),
      x && svg('text', {x: W - 8, y: height - 4, 'text-anchor': 'end'}, x),
      series.map((s, i) => s.points.length && svg('polyline', {
        class: `s${i}`, points: s.points.map(([a, b]) => `${px(a).toFixed(1)},${py(b).toFixed(1)}`).join(' ')}))));
  };
  el.set([]);
  return el;
}
