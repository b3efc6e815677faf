// Requests to this server. One key at most, in the tab's session storage, sent as a Bearer token.

const KEY = 'tandem.key';

export class ApiError extends Error {
  constructor(status, {message, code, param} = {}) {
    super(message || (status ? `HTTP status ${status}` : 'the server does not answer'));
    Object.assign(this, {status, code: code ?? null, param: param ?? null});
  }
  get needsKey() { return this.status === 401 || (this.status === 403 && this.code === 'insufficient_permissions'); }
}

export const key = {
  get: () => sessionStorage.getItem(KEY) ?? '',
  set(value) {
    if (value) sessionStorage.setItem(KEY, value); else sessionStorage.removeItem(KEY);
    dispatchEvent(new Event('tandem-key'));
  },
  // Set by the app: shows the dialog; resolves to whether the user gave a key.
  ask: async () => false,
};

// `#key=KEY` in the address is taken once and removed, so that it does not stay in the history.
export function takeKeyFromAddress() {
  const found = /[#&]key=([^&]*)/.exec(location.hash);
  if (!found) return;
  let value = found[1];
  try { value = decodeURIComponent(value); } catch { /* taken as it is */ }
  const rest = location.hash.replace(found[0], '');
  history.replaceState(null, '', location.pathname + location.search + (rest.startsWith('#') || !rest ? rest : `#${rest}`));
  key.set(value);
}

function headersFor(body) {
  const headers = {};
  if (body !== undefined) headers['Content-Type'] = 'application/json';
  if (key.get()) headers.Authorization = `Bearer ${key.get()}`;
  return headers;
}

async function errorOf(response) {
  let error = {};
  try { error = (await response.json()).error ?? {}; } catch { /* a proxy's page */ }
  return new ApiError(response.status, typeof error === 'string' ? {message: error} : error);
}

async function send(method, path, body, {signal, ask = true} = {}) {
  for (;;) {
    let response;
    try {
      response = await fetch(path, {
        method, signal, headers: headersFor(body), credentials: 'omit', cache: 'no-store',
        body: body === undefined ? undefined : JSON.stringify(body),
      });
    } catch (fault) {
      if (fault.name === 'AbortError') throw fault;
      throw new ApiError(0);
    }
    if (response.ok) return response;
    const error = await errorOf(response);
    if (!ask || !error.needsKey || !(await key.ask(error))) throw error;
  }
}

// The JSON of the answer, or its text if it is not JSON. Throws ApiError; with status 0 if the server
// does not answer. `ask: false`: a missing key throws instead of showing the dialog, for polling.
export async function request(method, path, body, options) {
  const response = await send(method, path, body, options);
  const text = await response.text();
  return (response.headers.get('content-type') ?? '').includes('json') ? JSON.parse(text) : text;
}

// Sends a request and calls onEvent(data, eventName) for each server-sent event until the stream ends:
// data is parsed JSON, or text. GET without a body. Throws ApiError, also for an error in the stream.
export async function stream(path, body, onEvent, signal, options = {}) {
  const response = await send(body === undefined ? 'GET' : 'POST', path, body, {...options, signal});
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = '', event = '', data = [];
  const flush = () => {
    const text = data.join('\n'), named = event;
    event = ''; data = [];
    if (!text || text === '[DONE]') return;
    let value = text;
    try { value = JSON.parse(text); } catch { /* text */ }
    if (value?.error && named !== 'job') throw new ApiError(value.error.status ?? 500, value.error);
    onEvent(value, named);
  };
  for (;;) {
    let part;
    try { part = await reader.read(); } catch (fault) {
      if (fault.name === 'AbortError') throw fault;
      throw new ApiError(0, {message: 'the connection to the server was lost'});
    }
    if (part.done) break;
    const lines = (rest + part.value).split('\n');
    rest = lines.pop();
    for (const line of lines) {
      if (line === '' || line === '\r') flush();
      else if (line.startsWith('data:')) data.push(line.slice(line[5] === ' ' ? 6 : 5).replace(/\r$/, ''));
      else if (line.startsWith('event:')) event = line.slice(6).trim();
    }
  }
  flush();
}

// Uploads a File with form fields; onProgress(sentBytes, allBytes).
export function upload(path, file, fields = {}, onProgress = () => {}, signal) {
  return new Promise((resolve, reject) => {
    const form = new FormData();
    for (const [name, value] of Object.entries(fields)) form.append(name, value);
    form.append('file', file);
    const xhr = new XMLHttpRequest();
    xhr.open('POST', path);
    if (key.get()) xhr.setRequestHeader('Authorization', `Bearer ${key.get()}`);
    xhr.upload.onprogress = (event) => onProgress(event.loaded, event.total);
    xhr.onerror = () => reject(new ApiError(0));
    xhr.onabort = () => reject(new DOMException('stopped', 'AbortError'));
    xhr.onload = async () => {
      let body = {};
      try { body = JSON.parse(xhr.responseText); } catch { /* a proxy's page */ }
      if (xhr.status < 300) return resolve(body);
      const error = new ApiError(xhr.status, body.error);
      if (error.needsKey && await key.ask(error)) {
        upload(path, file, fields, onProgress, signal).then(resolve, reject);
      } else {
        reject(error);
      }
    };
    signal?.addEventListener('abort', () => xhr.abort());
    xhr.send(form);
  });
}
