// A small part of Markdown as DOM nodes: headings, lists, quotes, code, emphasis, tables and rules.
// Links stay text, because a model chooses their target. Costs linear time in the text.

import {h, button} from './dom.js';
import {visible, clip, bytes, copy} from './text.js';

const FENCE = /^ {0,3}(```+|~~~+)\s*([^\s`]*)/;
const ITEM = /^(\s{0,12})([-*+]|\d{1,9}[.)])\s+(.*)$/;
// Code, bold, italic, struck out. Bounded, so that an unclosed mark costs no second look at the line.
const INLINE = /`([^`\n]{1,2000})`|\*\*(?=\S)([^*\n]{1,2000})\*\*|(?<![\w*])[*_](?=\S)([^*_\n]{1,2000})[*_](?!\w)|~~(?=\S)([^~\n]{1,2000})~~/g;
const TAGS = ['code', 'strong', 'em', 's'];

function inline(text) {
  const out = [];
  let at = 0;
  for (const found of text.matchAll(INLINE)) {
    out.push(text.slice(at, found.index));
    const i = found.slice(1).findIndex((group) => group !== undefined);
    out.push(h(TAGS[i], {dir: i ? null : 'ltr'}, found[i + 1]));
    at = found.index + found[0].length;
  }
  out.push(text.slice(at));
  return out;
}

// Lines of one paragraph keep their breaks, as chat models mean them.
const lines = (list) => list.flatMap((line, i) => i ? [h('br'), ...inline(line)] : inline(line));

function codeBlock(language, text) {
  const pre = h('pre', {dir: 'ltr', tabindex: 0, 'aria-label': `Code ${clip(language, 20)}`.trim()}, h('code', null, text));
  const copied = button('Copy', async () => { copied.textContent = await copy(text, pre) ? 'Copied' : 'Press Ctrl+C'; }, {class: 'plain'});
  return h('div.code', null, h('div.row', null, h('span.muted.grow', null, clip(language, 30)), copied), pre);
}

function table(rows) {
  const cells = (row) => row.trim().replace(/^\||\|$/g, '').split('|').map((cell) => cell.trim());
  return h('div.scroll', {tabindex: 0, role: 'region', 'aria-label': 'Table'}, h('table', null,
    h('thead', null, h('tr', null, cells(rows[0]).map((c) => h('th', {scope: 'col'}, inline(c))))),
    h('tbody', null, rows.slice(2).map((row) => h('tr', null, cells(row).map((c) => h('td', null, inline(c))))))));
}

// One list from the lines at `i`; nesting shows as indentation.
function list(all, i) {
  const ordered = /\d/.test(ITEM.exec(all[i])[2]);
  const el = h(ordered ? 'ol' : 'ul', {start: ordered ? Number.parseInt(ITEM.exec(all[i])[2], 10) : null});
  for (let found; i < all.length && (found = ITEM.exec(all[i])) && /\d/.test(found[2]) === ordered; ++i) {
    const more = [found[3]];
    while (i + 1 < all.length && /^\s{2,}\S/.test(all[i + 1]) && !ITEM.test(all[i + 1])) more.push(all[++i].trim());
    const depth = Math.min(4, Math.floor(found[1].length / 2));
    el.append(h('li', {style: depth ? {'margin-inline-start': `${depth * 1.25}rem`} : null}, lines(more)));
  }
  return [el, i];
}

// The nodes of a text, which `visible` has passed.
export function markdown(text) {
  const all = text.split('\n'), out = [];
  let paragraph = [];
  const flush = () => { if (paragraph.length) out.push(h('p', {dir: 'auto'}, lines(paragraph))); paragraph = []; };
  for (let i = 0; i < all.length; ++i) {
    const line = all[i];
    let found;
    if ((found = FENCE.exec(line))) {
      flush();
      const code = [], end = found[1];
      while (++i < all.length && !all[i].trimStart().startsWith(end)) code.push(all[i]);
      out.push(codeBlock(found[2], code.join('\n')));
    } else if ((found = /^ {0,3}(#{1,6})\s+(.*)$/.exec(line))) {
      flush();
      // Headings of an answer stand below those of the page.
      out.push(h('p.heading', {role: 'heading', 'aria-level': Math.min(6, found[1].length + 3), dir: 'auto'}, inline(found[2])));
    } else if (/^ {0,3}([-*_])(\s*\1){2,}\s*$/.test(line)) {
      flush();
      out.push(h('hr'));
    } else if (ITEM.test(line)) {
      flush();
      const [el, next] = list(all, i);
      out.push(el);
      i = next - 1;
    } else if (/^ {0,3}>/.test(line)) {
      flush();
      const quoted = [];
      for (; i < all.length && /^ {0,3}>/.test(all[i]); ++i) quoted.push(all[i].replace(/^ {0,3}> ?/, ''));
      --i;
      out.push(h('blockquote', {dir: 'auto'}, lines(quoted)));
    } else if (line.includes('|') && /^\s*\|?\s*:?-+:?\s*(\|\s*:?-+:?\s*)+\|?\s*$/.test(all[i + 1] ?? '')) {
      flush();
      const rows = [];
      for (; i < all.length && all[i].includes('|'); ++i) rows.push(all[i]);
      --i;
      out.push(table(rows));
    } else if (line.trim() === '') {
      flush();
    } else {
      paragraph.push(line);
    }
  }
  flush();
  return out;
}

// As longText, with Markdown. el.set(text) costs the shown part only.
export function longMarkdown(slice = 20_000) {
  let text = '', shown = slice, drawn = null;
  const body = h('div.md');
  const more = button('', () => { shown *= 2; el.set(text); });
  const el = h('div', null, body, more);
  el.set = (next) => {
    text = next;
    const part = clip(text, shown);
    if (part !== drawn) body.replaceChildren(...markdown(visible(part)));
    drawn = part;
    more.hidden = text.length <= shown;
    more.textContent = `Show more (${bytes(text.length - shown)} hidden)`;
  };
  return el;
}
