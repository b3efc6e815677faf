// Requests of the page at /docs. Unlike lib/api.js it shows every answer, refusals too, as text.

import {key} from '../lib/api.js';

const MAX_SHOWN = 1 << 20;  // characters of an answer; more would stall the page

// Path and query of an operation with these values; empty query values are left out.
export function pathOf(operation, values) {
  const path = operation.path.replace(/\{([^}]+)\}/g,
    (whole, name) => values[name] ? encodeURIComponent(values[name]) : whole);
  const query = new URLSearchParams();
  for (const {name, in: place} of operation.parameters) {
    if (place === 'query' && values[name]) query.set(name, values[name]);
  }
  return query.size ? `${path}?${query}` : path;
}

// Sends the request with the key of the session; calls onText with all text so far, again as a stream
// grows. Returns {status, requestId}. Throws what fetch throws; an aborted signal is one cause.
export async function send(operation, values, body, signal, onText) {
  const headers = {};
  if (key.get()) headers.Authorization = `Bearer ${key.get()}`;
  if (body !== undefined) headers['Content-Type'] = 'application/json';
  const response = await fetch(pathOf(operation, values), {
    method: operation.method.toUpperCase(), headers, body, signal, cache: 'no-store', credentials: 'omit',
  });
  const text = await readText(response, onText);
  if ((response.headers.get('content-type') ?? '').includes('json')) onText(indented(text));
  return {status: response.status, requestId: response.headers.get('x-request-id') ?? ''};
}

async function readText(response, onText) {
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let text = '';
  for (;;) {
    const {done, value} = await reader.read();
    if (done) return text;
    text += value;
    if (text.length > MAX_SHOWN) {
      await reader.cancel();
      text = `${text.slice(0, MAX_SHOWN)}\n… the rest is not shown`;
      onText(text);
      return text;
    }
    onText(text);
  }
}

function indented(text) {
  try { return JSON.stringify(JSON.parse(text), null, 2); } catch { return text; }
}
