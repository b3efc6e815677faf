// Aliases: names that stay the same while the model behind them changes.

import {h, fill, button, field} from '../lib/dom.js';
import {request} from '../lib/api.js';
import {curl} from '../lib/curl.js';
import {clip, name, visible} from '../lib/text.js';

// The previous target of each alias, for the way back; the server answers it once.
const PREVIOUS = 'tandem.aliases';
function previous() { try { return JSON.parse(localStorage.getItem(PREVIOUS)) ?? {}; } catch { return {}; } }

export class AliasCard {
  #shape = '';

  constructor(app, done) {
    Object.assign(this, {app, done});
    this.name = h('input', {maxlength: 128, placeholder: 'prod', spellcheck: 'false', autocomplete: 'off'});
    this.target = h('select');
    this.rows = h('div.rows');
    this.el = h('form.card', {hidden: true, oninput: () => this.curl.update(), onsubmit: (event) => { event.preventDefault(); const alias = this.name.value.trim(); if (alias) app.try(() => this.set(alias, this.target.value))(); else this.name.focus(); }},
      h('h2', null, 'Aliases'), h('p.muted', null, 'A name for clients that stays the same when the model changes. The change is atomic.'), this.rows,
      h('div.grid', null, field('Alias', this.name), field('Answers as', this.target)),
      h('div.row', null, h('button', {type: 'submit'}, 'Set alias'), this.curl = curl(() => ({method: 'PUT', path: this.path(this.name.value.trim() || 'prod'), body: {target: this.target.value}}))));
  }

  path(alias) { return `/admin/aliases/${alias.split('/').map(encodeURIComponent).join('/')}`; }

  show(aliases, served) {
    this.el.hidden = !aliases;
    if (!aliases) return;
    const shape = JSON.stringify([aliases, served.map((m) => m.id), previous()]);
    if (shape === this.#shape) return;
    this.#shape = shape;
    const names = new Set(aliases.map((a) => a.name)), was = this.target.value;
    fill(this.target, served.filter((m) => !names.has(m.id)).map((m) => h('option', {value: m.id}, clip(visible(m.id), 70))));
    if ([...this.target.options].some((o) => o.value === was)) this.target.value = was;
    const back = previous();
    fill(this.rows, aliases.length > 0 && h('div.scroll', {tabindex: 0, role: 'region', 'aria-label': 'Aliases'}, h('table', null,
      h('thead', null, h('tr', null, ['Alias', 'Answers as', 'State', 'Actions'].map((t) => h('th', {scope: 'col'}, t)))),
      h('tbody', null, aliases.map((a) => {
        const alias = a.name, before = back[alias];
        return h('tr', null, h('td', null, name(alias, 50)), h('td', null, name(a.target, 60)), h('td', null, h(`span.tag.${a.served ? 'good' : 'bad'}`, null, a.served ? 'answers' : 'no model')),
          h('td', null, before && before !== a.target && button('Roll back', this.app.try(() => this.set(alias, before)), {'aria-label': `Roll ${clip(visible(alias), 40)} back to ${clip(visible(before), 60)}`, title: visible(before)}),
            button('Delete', this.app.try(() => this.remove(alias)), {class: 'plain', 'aria-label': `Delete alias ${clip(visible(alias), 40)}`})));
      })))));
  }

  async set(alias, target) {
    const answer = await request('PUT', this.path(alias), {target});
    const kept = previous();
    if (answer.previous && answer.previous !== target) kept[alias] = answer.previous;
    localStorage.setItem(PREVIOUS, JSON.stringify(kept));
    this.name.value = '';
    this.app.toast(`${alias} answers as ${target}.`);
    await this.done();
  }

  async remove(alias) {
    if (!await this.app.confirm({title: 'Delete this alias?', text: `Requests for ${clip(visible(alias), 100)} are refused from now on. The model stays.`, action: 'Delete'})) return;
    await request('DELETE', this.path(alias));
    await this.done();
  }
}
