// The shell command of an action. It holds $TANDEM_KEY in place of the key.

import {h, button} from './dom.js';
import {key} from './api.js';
import {copy, visible} from './text.js';

const quote = (text) => `'${text.replaceAll("'", `'\\''`)}'`;

// JSON in which every character is visible: the others are escaped, which means the same.
const plainJson = (body) => JSON.stringify(body).replace(
  /[\x7f-\x9f\u061c\u200b-\u200f\u2028-\u202e\u2060-\u2069\ufeff]/g,
  (c) => `\\u${c.charCodeAt(0).toString(16).padStart(4, '0')}`);

// {method, path, body, file, fields}: `body` is sent as JSON, `file` (a name) and `fields` as a form.
export function curlOf({method = 'GET', path, body, file, fields = {}}) {
  const parts = [body?.stream ? 'curl -N' : 'curl'];
  const implied = body !== undefined || file !== undefined ? 'POST' : 'GET';
  if (method !== implied) parts[0] += ` -X ${method}`;
  parts[0] += ` ${quote(location.origin + path)}`;
  if (key.get()) parts.push('-H "Authorization: Bearer $TANDEM_KEY"');
  if (body !== undefined) parts.push(`-H 'Content-Type: application/json'`, `-d ${quote(plainJson(body))}`);
  for (const [name, value] of Object.entries(fields)) parts.push(`-F ${quote(`${name}=${value}`)}`);
  if (file !== undefined) parts.push(`-F ${quote(`file=@${file}`)}`);
  return parts.join(' \\\n  ');
}

// A fold "curl" beside an action. `get` returns the request, or a list of requests, when it is opened.
export function curl(get) {
  const code = h('pre', {tabindex: 0, 'aria-label': 'The equivalent curl command'});
  const text = () => [get()].flat().filter(Boolean).map(curlOf).join('\n');
  const done = h('span', {role: 'status'});
  const el = h('details.curl', null, h('summary', null, 'curl'), code,
    button('Copy', async () => { done.textContent = await copy(text(), code) ? ' Copied' : ' Press Ctrl+C'; }), done);
  el.addEventListener('toggle', () => { if (el.open) el.update(); });
  el.update = () => { if (el.open) { code.textContent = visible(text()); done.textContent = ''; } };
  return el;
}
