// A strip of tokens. Arrow keys, Home and End move through it; hover or focus shows the details of one.

import {h, fill, button} from './dom.js';
import {visible, number} from './text.js';

// Spaces stay spaces; a line break is marked and breaks the line.
const shape = (text) => text === '' ? '∅' : visible(text).replaceAll('\n', '⏎\n').replaceAll('\t', '⇥');

export const percent = (logprob) => {
  const p = Math.exp(logprob) * 100;
  return p >= 99.95 ? '100 %' : p < 0.01 ? '< 0.01 %' : `${number(p, p < 1 ? 2 : 1)} %`;
};

// tokenStrip(items, {label, classOf, detail}): items have `text`. `classOf(item, i)` gives CSS classes
// (special, cached, loss, masked, p0 … p4), `detail(item, i)` the nodes of the box below.
export function tokenStrip(items, {label, classOf = () => '', detail, slice = 1500}) {
  const strip = h('div.tokens', {role: 'listbox', 'aria-label': label, 'aria-orientation': 'horizontal', tabindex: items.length ? null : 0});
  const box = h('div.token-detail', {'aria-live': 'polite'}, h('span.muted', null, 'Point at a token, or move with the arrow keys.'));
  let shown = 0, current = null;
  const pick = (el, focus) => {
    if (!el) return;
    if (current) { current.tabIndex = -1; current.setAttribute('aria-selected', 'false'); }
    current = el;
    el.tabIndex = 0;
    el.setAttribute('aria-selected', 'true');
    if (focus) el.focus();
    const i = Number(el.dataset.i);
    if (detail) fill(box, detail(items[i], i));
  };
  const draw = () => {
    const end = Math.min(items.length, shown + slice);
    for (let i = shown; i < end; ++i) {
      const text = shape(items[i].text);
      strip.append(h('span', {role: 'option', 'aria-selected': 'false', tabindex: i ? -1 : 0, 'data-i': i,
        class: `tok ${classOf(items[i], i)}`, 'aria-label': text.trim() ? null : 'space'}, text));
    }
    shown = end;
    more.hidden = shown >= items.length;
    more.textContent = `Show more (${number(items.length - shown)} tokens hidden)`;
  };
  strip.addEventListener('pointerover', (event) => pick(event.target.closest?.('.tok')));
  strip.addEventListener('focusin', (event) => pick(event.target.closest?.('.tok')));
  strip.addEventListener('keydown', (event) => {
    const all = strip.children, i = current ? Number(current.dataset.i) : 0;
    const to = {ArrowRight: i + 1, ArrowLeft: i - 1, ArrowDown: i + 10, ArrowUp: i - 10, Home: 0, End: all.length - 1}[event.key];
    if (to === undefined) return;
    event.preventDefault();
    pick(all[Math.max(0, Math.min(all.length - 1, to))], true);
  });
  const more = button('', draw);
  draw();
  return h('div', null, strip, more, detail && box);
}

// Tokens of an answer: items {text, bytes, logprob, top: [{text, logprob}]}.
export function logprobStrip(items) {
  const level = (p) => p >= 0.9 ? 'p4' : p >= 0.5 ? 'p3' : p >= 0.2 ? 'p2' : p >= 0.05 ? 'p1' : 'p0';
  return tokenStrip(items, {
    label: 'Tokens of the answer, coloured by probability',
    classOf: (item) => level(Math.exp(item.logprob)),
    detail: (item) => [
      h('strong.mono', null, shape(item.text)), ` ${percent(item.logprob)}, log-probability ${number(item.logprob, 3)} `,
      item.top?.length ? h('table.tops', null, h('tbody', null, item.top.map((top) => h(`tr${top.text === item.text ? '.chosen' : ''}`, null,
        h('td.mono', null, shape(top.text)), h('td.num', null, percent(top.logprob)),
        h('td.wide', null, h('span.bar', {style: {width: `${Math.max(1, Math.exp(top.logprob) * 100)}%`}})))))) : null]});
}

// What a chat template made of the messages: the answer of POST /v1/render. The first `cached` tokens
// came from the prefix cache.
export function renderedStrip(tokens, {label, cached = 0, loss = false}) {
  return tokenStrip(tokens, {
    label,
    classOf: (t, i) => `${t.special ? 'special ' : ''}${i < cached ? 'cached ' : ''}${loss ? (t.loss ? 'loss' : 'masked') : ''}`,
    detail: (t, i) => [h('strong.mono', null, shape(t.text)), ` token ${t.id}, position ${i}`,
      t.special ? ', control token' : '', i < cached ? ', from the cache' : '', loss ? (t.loss ? ', learned' : ', not learned') : '']});
}
