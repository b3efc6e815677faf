// Loads a model or an adapter from below --model-root; first shows what that would need.

import {h, fill, button, field} from '../lib/dom.js';
import {request} from '../lib/api.js';
import {curl} from '../lib/curl.js';
import {bytes, clip, number, visible} from '../lib/text.js';

const KINDS = {embedded: 'built in', directory: 'directory', gguf: 'GGUF', adapter: 'adapter'};

export class LoadCard {
  #shape = '';

  constructor(app, done) {
    Object.assign(this, {app, done, list: []});
    this.path = h('select', {onchange: () => this.changed()});
    this.id = h('input', {placeholder: 'the last part of the path', spellcheck: 'false', autocomplete: 'off', maxlength: 128});
    this.dtype = h('select', null, [['auto', 'As stored'], ['bf16', 'bf16'], ['f32', 'f32'], ['int8', 'int8: half the memory'], ['int4', 'int4: a quarter']].map(([value, text]) => h('option', {value}, text)));
    this.context = h('input', {type: 'number', min: 1, step: 1, placeholder: 'the model\'s own'});
    this.pin = h('input', {type: 'checkbox'});
    this.modelOnly = h('div.grid.tight', null, field('Weights', this.dtype), field('Context', this.context, 'tokens'));
    this.pinned = h('label.check', null, this.pin, 'Keep it when idle (pin)');
    this.result = h('div.result', {'aria-live': 'polite'});
    this.more = h('p.muted');
    this.planButton = button('What would it need?', app.try(() => this.plan()));
    this.el = h('form.card', {hidden: true, oninput: () => { fill(this.result); this.curl.update(); }, onsubmit: (event) => { event.preventDefault(); this.load(); }},
      h('h2', null, 'Load a model'), this.more, h('div.grid', null, field('Model', this.path), field('Name', this.id)), this.modelOnly, this.pinned,
      h('div.row', null, this.planButton, this.go = h('button.primary', {type: 'submit'}, 'Load'),
        this.curl = curl(() => [this.chosen()?.kind !== 'adapter' && {path: '/admin/models/plan', body: this.body('plan')}, {path: this.isAdapter() ? '/admin/adapters/load' : '/admin/models/load', body: this.body()}])),
      this.result);
  }

  chosen() { return this.list.find((m) => m.path === this.path.value); }
  isAdapter() { return this.chosen()?.kind === 'adapter'; }

  show(admin) {
    this.el.hidden = !admin;
    if (!admin) return;
    const {available} = admin, shape = JSON.stringify(available);
    if (shape === this.#shape) return;
    this.#shape = shape;
    const was = this.path.value;
    this.list = available.data;
    fill(this.path, this.list.map((m) => h('option', {value: m.path}, clip(visible(m.path), 70),
      ` (${[KINDS[m.kind] ?? m.kind, m.family, m.dtype, m.bytes && bytes(m.bytes)].filter(Boolean).map(visible).join(', ')})`, m.loaded_as.length > 0 && ' · loaded')));
    if (this.list.some((m) => m.path === was)) this.path.value = was;
    fill(this.more, !available.complete && 'There are more folders below --model-root than the server looks into.');
    this.changed();
  }

  changed() { this.modelOnly.hidden = this.pinned.hidden = this.planButton.hidden = this.isAdapter(); }

  body(what) {
    const path = this.path.value, id = this.id.value.trim() || undefined;
    if (this.isAdapter()) return {name: id ?? path.split('/').at(-1), path};
    const shared = {path, dtype: this.dtype.value === 'auto' ? undefined : this.dtype.value, max_model_len: Number(this.context.value) || undefined};
    return what === 'plan' ? shared : {...shared, id, pin: this.pin.checked || undefined};
  }

  async plan() {
    const p = await request('POST', '/admin/models/plan', this.body('plan'));
    const kinds = [['weights', p.least.weights], ['KV cache of one conversation', p.least.kv], ['scratch', p.least.scratch]], all = Math.max(p.memory.budget_bytes, p.memory.used_bytes + p.least.total);
    fill(this.result, h(`div.note${p.fits ? '' : '.bad'}`, null, p.fits ? `It fits: ${bytes(p.least.total)} at least, ${bytes(p.memory.free_bytes)} are free.` :
      `It does not fit: ${bytes(p.least.total)} at least, only ${bytes(p.memory.free_bytes)} of ${bytes(p.memory.budget_bytes)} are free. Choose a smaller context, int8 or int4, or unload a model.`),
    h('div.meter', {role: 'img', 'aria-label': `${bytes(p.memory.used_bytes)} in use, ${bytes(p.least.total)} for this model, ${bytes(p.memory.budget_bytes)} in all`},
      h('span.used', {style: {width: `${p.memory.used_bytes / all * 100}%`}}), kinds.map(([, n], i) => h(`span.s${i}`, {style: {width: `${n / all * 100}%`}}))),
    h('p.muted', null, `${visible(p.format)}, ${visible(p.dtype)}, context ${number(p.max_model_len)}: `, kinds.map(([kind, n], i) => `${i ? ', ' : ''}${kind} ${bytes(n)}`),
      `. Up to ${bytes(p.most_kv)} of KV cache serve many conversations at once.`));
  }

  async load() {
    this.go.disabled = true;
    try {
      const body = this.body(), path = this.isAdapter() ? '/admin/adapters/load' : '/admin/models/load';
      await request('POST', path, body);
      this.app.toast(this.isAdapter() ? 'The adapter answers now.' : 'The model is being loaded; the list shows its progress.');
      fill(this.result);
      this.id.value = '';
      await this.done();
    } catch (error) {
      fill(this.result, h('div.note.bad', null, clip(visible(this.app.sentence(error)), 3000)));
    } finally {
      this.go.disabled = false;
    }
  }
}
