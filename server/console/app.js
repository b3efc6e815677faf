// The frame: navigation by the part of the address behind '#', the key, theme and messages.
// A screen is a module screens/ID.js that exports mount(root, app) and unmount().

import {h, fill, button, field} from './lib/dom.js';
import {ApiError, key, request, takeKeyFromAddress} from './lib/api.js';
import {clip, visible} from './lib/text.js';

// Screens in the order of the navigation: id and title.
const SCREENS = [
  ['chat', 'Chat'],
  ['models', 'Models'],
  ['data', 'Data'],
  ['train', 'Train'],
  ['server', 'Server'],
];

const main = document.getElementById('main');
const toasts = document.getElementById('toasts');

// What screens get. They also import lib/.
const app = {
  // The parameters of the address, as in #/chat?model=NAME&beside=OTHER.
  params: new URLSearchParams(),
  go(id, params = {}) {
    const query = new URLSearchParams(params).toString();
    location.hash = `#/${id}${query && `?${query}`}`;
  },
  // Models that answer now, as in GET /v1/models.
  async models(options) { return (await request('GET', '/v1/models', undefined, options)).data; },
  // Shows a message for some seconds; errors stay until they are closed.
  toast(text, isError = false) {
    const el = h(`div.toast${isError ? '.bad' : ''}`, null, h('span', null, clip(visible(text), 500)),
      button('×', () => el.remove(), {'aria-label': 'Close message', class: 'plain'}));
    toasts.append(el);
    while (toasts.children.length > 4) toasts.firstChild.remove();
    if (!isError) setTimeout(() => el.remove(), 5000);
  },
  // Shows an error of a request; ignores what the user stopped.
  fail(error) {
    if (error?.name === 'AbortError') return;
    if (!(error instanceof ApiError)) console.error(error);
    app.toast(sentence(error), true);
  },
  // Runs an async action of a button and shows its error.
  try: (action) => async (...args) => {
    try { return await action(...args); } catch (error) { app.fail(error); return undefined; }
  },
  sentence,
  // Asks before what cannot be undone. Resolves to true or false.
  confirm: ({title, text, action = 'Continue'}) => dialog(title, (close) => [
    h('p', null, text),
    h('div.row.end', null, button('Cancel', () => close(false)), button(action, () => close(true), {class: 'danger'}))]),
  dialog,
};

// An error as a sentence that says what to do.
function sentence(error) {
  if (error instanceof ApiError && error.status === 0) {
    return `${error.message}. Check that the program still runs, then try again.`;
  }
  return error?.message ?? String(error);
}

// A modal dialog. `content(close)` returns its nodes; resolves to what close gets, false for Escape.
function dialog(title, content) {
  return new Promise((resolve) => {
    const back = document.activeElement;
    let result = false;
    const close = (value) => { result = value; el.close(); };
    const el = h('dialog', {'aria-label': title}, h('h2', null, title), content(close));
    el.addEventListener('close', () => { el.remove(); back?.focus?.(); resolve(result); });
    document.body.append(el);
    el.showModal();
  });
}

// One dialog at a time, however many requests are refused at once.
let asking = null;
key.ask = (error) => {
  asking ??= dialog('This server needs a key', (close) => {
    const input = h('input', {type: 'password', autocomplete: 'off', spellcheck: 'false', required: true, autofocus: true});
    const save = (event) => {
      event.preventDefault();
      if (!input.value.trim()) return;
      key.set(input.value.trim());
      close(true);
    };
    return h('form', {onsubmit: save},
      h('p', null, key.get() ? `The server refused the key: ${visible(error.message)}` :
        'Enter an API key of this server, or its admin key for all screens.'),
      field('Key', input, 'Kept in this tab until it is closed. ./serve writes the admin key to ~/.local/share/tandem/admin.key.'),
      h('div.row.end', null, button('Cancel', () => close(false)), h('button.primary', {type: 'submit'}, 'Use key')));
  }).finally(() => { asking = null; });
  return asking;
};

function themeButton() {
  const root = document.documentElement;
  const names = ['auto', 'light', 'dark'];
  const set = (theme) => {
    if (theme === 'auto') delete root.dataset.theme; else root.dataset.theme = theme;
    el.textContent = `Theme: ${theme}`;
    localStorage.setItem('tandem.theme', theme);
  };
  const el = button('', () => set(names[(names.indexOf(root.dataset.theme ?? 'auto') + 1) % 3]), {class: 'plain'});
  const saved = localStorage.getItem('tandem.theme');
  set(names.includes(saved) ? saved : 'auto');
  return el;
}

const links = new Map(SCREENS.map(([id, title]) => [id, h('a', {href: `#/${id}`}, title)]));
const keyButton = button('', async () => {
  if (key.get()) { key.set(''); app.toast('The key is forgotten.'); } else await key.ask(new ApiError(401));
}, {class: 'plain'});
const showKey = () => { keyButton.textContent = key.get() ? 'Forget key' : 'Enter key'; };
addEventListener('tandem-key', showKey);

let current = null;
let shows = 0;  // counts navigations: a slow import must not replace a later screen
async function show() {
  const [path, query = ''] = location.hash.replace(/^#\/?/, '').split('?');
  const [id, title] = SCREENS.find(([name]) => name === path) ?? SCREENS[0];
  const mine = ++shows;
  let screen;
  try {
    screen = await import(`./screens/${id}.js`);
  } catch (error) {
    console.error(error);
    if (mine === shows) fill(main, h('div.empty', null, h('h1', null, title), h('p', null, 'This screen could not be loaded. Reload the page.')));
    return;
  }
  if (mine !== shows) return;
  try { current?.unmount?.(); } catch (error) { console.error(error); }
  current = screen;
  app.params = new URLSearchParams(query);
  for (const [name, link] of links) {
    if (name === id) link.setAttribute('aria-current', 'page'); else link.removeAttribute('aria-current');
  }
  document.title = `${title} · Tandem`;
  const root = h(`section.screen.${id}`);
  fill(main, root);
  screen.mount(root, app);
}

function start() {
  takeKeyFromAddress();
  showKey();
  const version = h('span.muted');
  fill(document.getElementById('bar'),
    h('span.brand', null, 'Tandem ', version),
    h('nav', {'aria-label': 'Screens'}, [...links.values()]),
    h('div.tools', null, h('a.muted', {href: '/docs', style: {'align-self': 'center', 'margin-inline': '.5rem'}}, 'API'),
      keyButton, themeButton()));
  document.querySelector('.skip').addEventListener('click', (event) => { event.preventDefault(); main.focus(); });
  addEventListener('hashchange', () => { takeKeyFromAddress(); show(); });
  request('GET', '/version', undefined, {ask: false}).then((v) => { version.textContent = clip(v.version, 20); }, () => {});
  show();
}
start();
