// Models: what answers now, what can be loaded and what that would need, adapters and aliases.

import {h, fill, button, empty} from '../lib/dom.js';
import {key, request} from '../lib/api.js';
import {curl} from '../lib/curl.js';
import {bytes, clip, name, number, visible, when} from '../lib/text.js';
import {AliasCard} from '../models/aliases.js';
import {LoadCard} from '../models/load.js';

const EVERY_MS = 3000;
const STATES = {loaded: 'answers', loading: 'loading', unloading: 'unloading', failed: 'failed'};

const head = (...cells) => h('thead', null, h('tr', null, cells.map((t) => h(`th${t.startsWith('#') ? '.num' : ''}`, {scope: 'col'}, t.replace('#', '')))));
const region = (label, ...children) => h('div.scroll', {tabindex: 0, role: 'region', 'aria-label': label}, h('table', null, children));

class ModelsScreen {
  #timer = 0;
  #isOver = false;
  #shape = '';

  constructor(root, app) {
    Object.assign(this, {root, app});
    this.state = h('span.tag', {role: 'status'}, 'loading');
    this.note = h('div');
    this.list = h('div');
    this.adapters = h('div');
    this.tuned = h('div');
    const again = () => { this.available = null; return this.read(); };
    this.load = new LoadCard(app, again);
    this.aliases = new AliasCard(app, again);
    fill(root, h('header', null, h('h1', null, 'Models'), this.state, h('div.grow'), curl(() => [{path: '/v1/models'}, {path: '/admin/models'}])),
      this.note, this.list, this.load.el, this.adapters, this.aliases.el, this.tuned);
    this.onKey = () => { this.isRefused = false; this.available = null; this.read(); };
    addEventListener('tandem-key', this.onKey);
    this.read();
  }

  close() { this.#isOver = true; clearTimeout(this.#timer); removeEventListener('tandem-key', this.onKey); }

  async read() {
    clearTimeout(this.#timer);
    const quiet = {ask: false};
    try {
      const served = (await request('GET', '/v1/models', undefined, quiet)).data;
      let admin = null;
      if (key.get() && !this.isRefused) {
        try {
          // One request first: a key without the scope admin is refused once.
          const models = await request('GET', '/admin/models', undefined, quiet);
          const [adapters, aliases] = await Promise.all(['/admin/adapters', '/admin/aliases'].map((path) => request('GET', path, undefined, quiet)));
          // A walk through folders: once, and after each change.
          this.available ??= await request('GET', '/admin/models/available', undefined, quiet);
          admin = {models, adapters: adapters.data, aliases: aliases.data, available: this.available};
        } catch (error) {
          if (!error.needsKey && error.status !== 403) throw error;
          this.isRefused = true;  // until another key is given
        }
      }
      if (this.#isOver) return;
      fill(this.state, `${served.length} ${served.length === 1 ? 'name answers' : 'names answer'}`);
      const shape = JSON.stringify([served, admin]);
      if (shape !== this.#shape) {
        this.#shape = shape;
        this.draw(served, admin);
      }
    } catch (error) {
      if (this.#isOver) return;
      this.#shape = '';
      if (error.needsKey) fill(this.list, empty('This server needs a key', 'Models are listed for keys with the scope infer.', button('Enter key', () => key.ask(error))));
      else fill(this.state, visible(this.app.sentence(error)));
    }
    if (!this.#isOver) this.#timer = setTimeout(() => this.read(), EVERY_MS);
  }

  draw(served, admin) {
    fill(this.note, !admin && h('div.note', null, 'To load, unload and rename models, enter the admin key. ./serve writes it to ~/.local/share/tandem/admin.key. ',
      button('Enter admin key', async () => { await key.ask({message: 'the admin key is needed'}); })));
    const focused = document.activeElement?.id;
    fill(this.list, admin ? this.#loaded(admin.models, served) : this.#plain(served));
    this.load.show(admin);
    this.aliases.show(admin?.aliases, served);
    fill(this.adapters, admin?.adapters.length > 0 && h('div.card', null, h('h2', null, 'Adapters'), region('Adapters', head('Adapter', 'Base', '#Rank', '#Memory', 'From', 'Actions'),
      h('tbody', null, admin.adapters.map((a) => h('tr', null, h('td', null, name(a.name, 60)), h('td', null, name(a.base, 40)), h('td.num', null, number(a.rank)), h('td.num', null, bytes(a.memory_bytes)),
        h('td', null, a.owned_by === 'user' ? 'a job' : name(a.path ?? '', 50)), h('td', null, this.#chat(a.name, a.base), a.owned_by !== 'user' && this.#act('Unload', `Unload ${a.name}`, () => this.unloadAdapter(a.name)))))))));
    const tuned = served.filter((m) => m.owned_by === 'user');
    fill(this.tuned, tuned.length > 0 && h('div.card', null, h('h2', null, 'Fine-tuned here'), region('Fine-tuned models', head('Model', 'Base', 'Made', 'Actions'), h('tbody', null, tuned.map((m) => h('tr', null,
      h('td', null, name(m.id, 70)), h('td', null, name(m.parent ?? '', 40)), h('td', null, when(m.created)),
      h('td', null, this.#chat(m.id, m.parent), h('a.button', {href: `#/train?${new URLSearchParams({new: 1, model: m.id})}`, 'aria-label': `Train ${clip(visible(m.id), 60)} further`}, 'Train further'),
        this.#act('Delete', `Delete ${m.id}`, () => this.remove(m.id)))))))));
    if (focused) document.getElementById(focused)?.focus();
  }

  #act(text, label, action) { return button(text, this.app.try(action), {class: 'plain', 'aria-label': clip(visible(label), 90)}); }
  #chat(model, base) { return h('a.button', {href: `#/chat?${new URLSearchParams(base ? {model, beside: base} : {model})}`, 'aria-label': `Chat with ${clip(visible(model), 60)}`}, 'Chat'); }

  #plain(served) {
    if (!served.length) return empty('No model answers yet', 'The server may still be loading one.');
    return h('div.card', null, region('Models', head('Name', '#Context', 'Base'), h('tbody', null, served.map((m) => h('tr', null,
      h('td', null, name(m.id, 70)), h('td.num', null, number(m.max_model_len)), h('td', null, m.parent ? name(m.parent, 40) : '–'))))));
  }

  #loaded({data, memory}, served) {
    const parts = data.flatMap((m) => m.memory_bytes > 0 ? [[m.id, m.memory_bytes]] : []);
    const origin = (m) => {
      const p = m.provenance ?? served.find((one) => one.id === m.id)?.provenance;
      return p ? h('details', null, h('summary', null, 'Origin'), h('pre', {tabindex: 0}, clip(visible(JSON.stringify(p, null, 1)), 6000))) : null;
    };
    return h('div.card', null,
      h('div.meter', {role: 'img', 'aria-label': `${bytes(memory.used_bytes)} of ${bytes(memory.budget_bytes)} in use`}, parts.map(([, n], i) => h(`span.s${i % 4}`, {style: {width: `${n / memory.budget_bytes * 100}%`}}))),
      h('p.muted', null, `${bytes(memory.used_bytes)} of ${bytes(memory.budget_bytes)} in use, ${bytes(memory.free_bytes)} free`),
      region('Loaded models', head('Model', 'State', 'Weights', '#Context', '#Memory', '#Running', 'Actions'), h('tbody', null, data.map((m) => h('tr', null,
        h('td', null, name(m.id, 60), m.pinned && h('span.tag', null, 'pinned'), origin(m)),
        h('td', null, h(`span.tag${m.state === 'failed' ? '.bad' : m.state === 'loaded' ? '.good' : ''}`, null, STATES[m.state] ?? visible(m.state), m.progress !== undefined && m.state === 'loading' ? ` ${number(m.progress * 100)} %` : ''),
          m.error && h('div.bad.text', null, clip(visible(m.error), 500))),
        h('td', null, visible([m.format, m.dtype].filter(Boolean).join(', ')) || '–'), h('td.num', null, number(m.max_model_len)),
        h('td.num', {title: `weights ${bytes(m.memory.weights)}, KV cache ${bytes(m.memory.kv)}, scratch ${bytes(m.memory.scratch)}`}, bytes(m.memory_bytes)), h('td.num', null, number(m.running)),
        h('td', null, m.state === 'loaded' && [this.#chat(m.id), this.#act('Unload', `Unload ${m.id}`, () => this.unload(m))]))))));
  }

  async unload(m) {
    if (!await this.app.confirm({title: 'Unload this model?', text: `${clip(visible(m.id), 100)} stops answering when its requests have ended.${m.pinned ? ' It is pinned: its requests end at once.' : ''}`, action: 'Unload'})) return;
    await request('POST', '/admin/models/unload', {id: m.id, ...(m.pinned ? {force: true} : {})});
    await this.read();
  }

  async unloadAdapter(adapter) {
    if (!await this.app.confirm({title: 'Unload this adapter?', text: `${clip(visible(adapter), 100)} stops answering. Its files stay.`, action: 'Unload'})) return;
    await request('POST', '/admin/adapters/unload', {name: adapter});
    await this.read();
  }

  async remove(id) {
    if (!await this.app.confirm({title: 'Delete this model?', text: `${clip(visible(id), 100)} and its checkpoints are deleted.`, action: 'Delete'})) return;
    await request('DELETE', `/v1/models/${id.split('/').map(encodeURIComponent).join('/')}`);
    await this.read();
  }
}

let screen = null;
export function mount(root, app) { screen = new ModelsScreen(root, app); }
export function unmount() { screen.close(); screen = null; }
