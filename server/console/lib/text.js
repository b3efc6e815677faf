// Shows text of models, files and clients safely. Nothing here makes markup.

import {h, newId, button} from './dom.js';

// Controls (but tab and line break), bidi controls, invisible and tag characters, lone surrogates.
const HIDDEN = /[\0-\x08\x0b-\x1f\x7f-\x9f\u061c\u200b\u200e\u200f\u2028-\u202e\u2060-\u2069\ufeff\u{e0000}-\u{e007f}]|\p{Cs}/gu;

const mark = (c) => `\u27e8U+${c.codePointAt(0).toString(16).toUpperCase().padStart(4, '0')}\u27e9`;

// The text with control and bidi characters made visible. `\r\n` stays a line break.
export const visible = (text) => String(text ?? '').replaceAll('\r\n', '\n').replace(HIDDEN, mark);

// At most `n` characters, with an ellipsis; never half of a surrogate pair.
export function clip(text, n) {
  text = String(text ?? '');
  if (text.length <= n) return text;
  const end = /[\ud800-\udbff]/.test(text[n - 1]) ? n - 1 : n;
  return `${text.slice(0, end)}…`;
}

// A name of a model, file or job: isolated from its surroundings, one line, bounded.
export function name(text, n = 80) {
  const all = visible(text).replaceAll('\n', '⏎').replaceAll('\t', '⇥');
  const short = clip(all, n);
  return h('bdi.name', {title: short === all ? null : clip(all, 2000)}, short);
}

// A long text in slices: the first one at once, more on demand. `el.set(text)` replaces it, at the cost
// of the shown part only.
export function longText(tag = 'div', slice = 50_000) {
  let text = '', shown = slice;
  const body = h(`${tag}.text`, {dir: 'auto'});
  const more = button('', () => { shown += slice; el.set(text); });
  const el = h('div', null, body, more);
  let drawn = '';
  el.set = (next) => {
    text = next;
    const part = clip(text, shown);
    // Appends where it can: replacing a long text for each token would be quadratic.
    if (drawn && body.lastChild && part.startsWith(drawn)) body.append(visible(part.slice(drawn.length)));
    else body.replaceChildren(visible(part));
    drawn = text.length > shown ? '' : part;
    more.hidden = text.length <= shown;
    more.textContent = `Show more (${bytes(text.length - shown)} hidden)`;
  };
  el.set('');
  return el;
}

export const number = (n, digits = 0) =>
  n === null || n === undefined || !Number.isFinite(+n) ? '–' :
  (+n).toLocaleString('en', {maximumFractionDigits: digits, minimumFractionDigits: digits});

export function bytes(n) {
  if (!Number.isFinite(+n)) return '–';
  let unit = 0;
  for (n = +n; Math.abs(n) >= 1024 && unit < 4; ++unit) n /= 1024;
  return `${number(n, unit && n < 100 ? 1 : 0)} ${['B', 'KiB', 'MiB', 'GiB', 'TiB'][unit]}`;
}

// 0.0042 -> "4.2 ms", 75 -> "1 min 15 s".
export function seconds(s) {
  if (s === null || s === undefined || !Number.isFinite(+s)) return '–';
  if (s < 0.9995) return `${number(s * 1000, s < 0.01 ? 1 : 0)} ms`;
  if (s < 60) return `${number(s, s < 10 ? 1 : 0)} s`;
  if (s < 3600) return `${Math.floor(s / 60)} min ${Math.round(s % 60)} s`;
  return `${Math.floor(s / 3600)} h ${Math.round((s % 3600) / 60)} min`;
}

// Unix seconds -> "today 14:02" in the browser's zone.
export function when(unix) {
  if (!unix) return '–';
  const at = new Date(unix * 1000);
  const time = at.toLocaleTimeString([], {hour: '2-digit', minute: '2-digit'});
  return at.toDateString() === new Date().toDateString() ? time : `${at.toLocaleDateString()} ${time}`;
}

export function download(fileName, text, type = 'application/json') {
  const url = URL.createObjectURL(new Blob([text], {type}));
  const link = h('a', {href: url, download: fileName});
  document.body.append(link);
  link.click();
  link.remove();
  setTimeout(() => URL.revokeObjectURL(url), 10_000);
}

export async function copy(text, el) {
  try {
    await navigator.clipboard.writeText(text);
  } catch {  // no permission, or not https: select it, so that the user can copy
    if (!el) return false;
    getSelection().selectAllChildren(el);
    return false;
  }
  return true;
}

export {newId};
