// The fine-tuning jobs of this client, newest first.

import {h, fill, button, empty} from '../lib/dom.js';
import {request} from '../lib/api.js';
import {curl} from '../lib/curl.js';
import {name, seconds, visible, when} from '../lib/text.js';
import {chatLink, isOver, stateTag} from './parts.js';

const EVERY_MS = 3000;

export class JobList {
  #timer = 0;
  #isOver = false;
  #limit = 20;

  constructor(root, app) {
    this.app = app;
    this.body = h('div');
    fill(root, h('header', null, h('h1', null, 'Train'), h('div.grow'), h('a.button.primary', {href: '#/train?new=1'}, 'New job'),
      curl(() => ({path: `/v1/fine_tuning/jobs?limit=${this.#limit}`}))), this.body);
    this.onKey = () => this.load();
    addEventListener('tandem-key', this.onKey);
    this.load(true);
  }

  close() { this.#isOver = true; clearTimeout(this.#timer); removeEventListener('tandem-key', this.onKey); }

  async load(ask = false) {
    clearTimeout(this.#timer);
    try {
      const list = await request('GET', `/v1/fine_tuning/jobs?limit=${this.#limit}`, undefined, {ask});
      if (this.#isOver) return;
      this.draw(list);
      // An idle list needs no polling: a job starts here, or the user reloads.
      if (list.data.some((job) => !isOver(job))) this.#timer = setTimeout(() => this.load(), EVERY_MS);
    } catch (error) {
      if (!this.#isOver) fill(this.body, empty('The jobs could not be listed', visible(this.app.sentence(error)), button('Try again', () => this.load(true))));
    }
  }

  draw(list) {
    const shape = JSON.stringify(list);
    if (shape === this.shape) return;
    this.shape = shape;
    if (!list.data.length) {
      fill(this.body, empty('No training yet', 'A job makes a model of your own from a file of examples, while this server keeps answering.',
        h('a.button', {href: '#/data'}, 'Look at a file first'), ' ', h('a.button.primary', {href: '#/train?new=1'}, 'New job')));
      return;
    }
    const focused = document.activeElement?.getAttribute?.('href');
    fill(this.body, h('div.card.scroll', {tabindex: 0, role: 'region', 'aria-label': 'Jobs'}, h('table', null,
      h('thead', null, h('tr', null, ['Job', 'Model', 'State', 'Begun', 'Took', 'Result'].map((t) => h('th', {scope: 'col'}, t)))),
      h('tbody', null, list.data.map((job) => h('tr', null,
        h('td', null, h('a', {href: `#/train?job=${encodeURIComponent(job.id)}`}, name(job.id, 24))), h('td', null, name(job.model, 60)),
        h('td', null, stateTag(job.status)), h('td', null, when(job.created_at)), h('td', null, job.finished_at ? seconds(job.finished_at - job.created_at) : '–'),
        h('td', null, job.fine_tuned_model ? chatLink(job.fine_tuned_model, job.model) : job.error?.message ? h('span.bad', null, visible(job.error.message).slice(0, 160)) : '–')))))),
    list.has_more && button('Show more', () => { this.#limit = Math.min(100, this.#limit + 40); return this.load(); }));
    if (focused) this.body.querySelector(`a[href="${CSS.escape(focused)}"]`)?.focus();
  }
}
