// API keys: list, create, revoke. Needs the admin key.

import {h, fill, button, field} from '../lib/dom.js';
import {ApiError, key, request} from '../lib/api.js';
import {curl} from '../lib/curl.js';
import {copy, name, number, visible, when} from '../lib/text.js';

const SCOPES = [['infer', 'chat and everything else that a model answers', true], ['train', 'files and fine-tuning', true], ['admin', 'this screen, models, all records', false]];

export class KeysCard {
  constructor(app) {
    this.app = app;
    this.body = h('div');
    this.el = h('div.card', null, h('div.row', null, h('h2.grow', null, 'API keys'), curl(() => ({path: '/admin/keys'}))), this.body);
  }

  async load() {
    try {
      if (!key.get()) throw new ApiError(401);  // /admin always refuses requests without a key
      this.draw((await request('GET', '/admin/keys', undefined, {ask: false})).data);
    } catch (error) {
      const text = error.code === 'admin_disabled' ? 'This server has no administration. ./serve makes an admin key; otherwise start it with --admin-key-file.'
        : error.code === 'keys_disabled' ? 'This server keeps no keys. Start it with --data-dir.'
        : error.needsKey ? 'Keys need the admin key.' : visible(this.app.sentence(error));
      fill(this.body, h('p.muted', null, text), error.needsKey ? button('Enter key', async () => { await key.ask(error); }) : null);
    }
  }

  draw(keys) {
    const label = h('input', {required: true, maxlength: 64, autocomplete: 'off', spellcheck: 'false'});
    const days = h('input', {type: 'number', min: 1, max: 3650, step: 1, placeholder: 'never'});
    const boxes = SCOPES.map(([scope, , on]) => h('input', {type: 'checkbox', value: scope, checked: on}));
    const body = () => ({name: label.value.trim() || 'NAME', scopes: boxes.filter((b) => b.checked).map((b) => b.value),
      ...(days.valueAsNumber > 0 ? {expires_after_s: days.valueAsNumber * 86400} : {})});
    const create = async (event) => {
      event.preventDefault();
      // The first key closes an open server to everyone without one, this page included.
      if (keys.every((k) => k.revoked_at) && !await this.app.confirm({title: 'Create the first key?',
        text: 'From then on this server refuses requests without a key, also after the key is revoked.', action: 'Create'})) return;
      try {
        const {key: secret} = await request('POST', '/admin/keys', body());
        const shown = h('code', {tabindex: 0}, secret);
        await this.load();
        this.body.prepend(h('div.note', {role: 'status'}, h('p', null, 'The new key, shown only now: ', shown),
          button('Copy', async (e) => { e.target.textContent = await copy(secret, shown) ? 'Copied' : 'Press Ctrl+C'; })));
      } catch (error) {
        this.app.fail(error);
      }
    };
    const rows = keys.slice(0, 500).map((k) => {
      const isOld = k.revoked_at || (k.expires_at && k.expires_at * 1000 < Date.now());
      return h('tr', null, h('th', {scope: 'row'}, name(k.name, 50)), h('td', null, k.scopes.join(', ')),
        h('td', null, k.revoked_at ? 'revoked' : isOld ? 'expired' : k.expires_at ? `until ${when(k.expires_at)}` : 'no end'),
        h('td', null, k.last_used_at ? when(k.last_used_at) : 'never'),
        h('td.num', null, number(k.usage?.requests)), h('td.num', null, number((k.usage?.prompt_tokens ?? 0) + (k.usage?.generation_tokens ?? 0))),
        h('td', null, isOld ? null : button('Revoke', () => this.revoke(k), {class: 'plain', 'aria-label': `Revoke ${visible(k.name).slice(0, 50)}`})));
    });
    fill(this.body, keys.length ? h('div.scroll', {tabindex: 0, role: 'region', 'aria-label': 'API keys'}, h('table', null, h('thead', null, h('tr', null,
      ['Name', 'Scopes', 'Valid', 'Last used'].map((t) => h('th', {scope: 'col'}, t)), ['Requests', 'Tokens'].map((t) => h('th.num', {scope: 'col'}, t)), h('th', {scope: 'col'}, 'Actions'))),
      h('tbody', null, rows))) : h('p.muted', null, 'No keys yet. The first one closes the API to requests without a key.'),
    h('form.new-key', {onsubmit: create}, h('h3', null, 'New key'), h('div.row', null, field('Name', label), field('Days until it expires', days)),
      h('fieldset', null, h('legend', null, 'Scopes'), SCOPES.map(([scope, what], i) => h('label.check', null, boxes[i], h('span', null, scope, h('small.muted', null, ` ${what}`))))),
      h('div.row', null, h('button.primary', {type: 'submit'}, 'Create key'), curl(() => ({method: 'POST', path: '/admin/keys', body: body()})))));
  }

  async revoke(k) {
    if (!await this.app.confirm({title: 'Revoke this key?', text: `Programs that use “${visible(k.name).slice(0, 50)}” get 401 from the next request on. This cannot be undone.`, action: 'Revoke'})) return;
    try {
      await request('DELETE', `/admin/keys/${encodeURIComponent(k.id)}`);
      await this.load();
    } catch (error) {
      this.app.fail(error);
    }
  }
}
