// The jobs of the server, with the admin key; without it the fine-tuning jobs that this client may see.

import {h, fill, button} from '../lib/dom.js';
import {key, request} from '../lib/api.js';
import {curl} from '../lib/curl.js';
import {name, number, seconds, visible, when} from '../lib/text.js';

const EVERY_MS = 4000;
const ACTIVE = ['queued', 'running', 'paused', 'validating_files'];
const SHOWN = 50;

// Both kinds of job in one shape.
const common = (job) => ({
  id: job.id, type: job.type ?? 'fine_tune', status: job.status, created: job.created_at, finished: job.finished_at,
  title: job.request?.spec?.run_name ?? job.request?.spec?.name ?? job.fine_tuned_model ?? job.user_provided_suffix ?? job.result?.model,
  progress: job.progress, error: job.error?.message});

export class JobsCard {
  #timer = 0;
  #isOver = false;

  constructor(app) {
    this.app = app;
    this.base = '/admin/jobs';
    this.rows = h('tbody');
    this.note = h('p.muted');
    this.table = h('div.scroll', {tabindex: 0, role: 'region', 'aria-label': 'Jobs'}, h('table', null,
      h('thead', null, h('tr', null, ['Job', 'Type', 'Status', 'Begun', 'Took', 'Actions'].map((t) => h('th', {scope: 'col'}, t)))), this.rows));
    this.curl = curl(() => ({path: `${this.base}?limit=${SHOWN}`}));
    this.el = h('div.card', null, h('div.row', null, h('h2.grow', null, 'Jobs'), this.curl), this.note, this.table);
  }

  // Asks again whether the key opens /admin.
  reload() {
    this.isRefused = false;
    return this.load();
  }

  async load() {
    clearTimeout(this.#timer);
    try {
      let list;
      // /admin always refuses requests without a key.
      for (this.base of key.get() && !this.isRefused ? ['/admin/jobs', '/v1/fine_tuning/jobs'] : ['/v1/fine_tuning/jobs']) {
        try {
          list = await request('GET', `${this.base}?limit=${SHOWN}`, undefined, {ask: false});
          break;
        } catch (error) {
          if (this.base !== '/admin/jobs' || (error.status !== 401 && error.status !== 403)) throw error;
          this.isRefused = true;  // until another key is given
        }
      }
      if (this.#isOver) return;
      this.draw(list.data.map(common), list.has_more);
    } catch (error) {
      if (this.#isOver) return;
      this.table.hidden = true;
      this.note.textContent = error.needsKey ? 'Jobs need a key with the scope train, or the admin key.' : visible(this.app.sentence(error));
    }
    if (!this.#isOver) this.#timer = setTimeout(() => this.load(), EVERY_MS);
  }

  draw(jobs, hasMore) {
    this.curl.update();
    const focused = document.activeElement?.dataset?.job;
    this.table.hidden = jobs.length === 0;
    this.note.textContent = jobs.length === 0 ? 'No jobs yet. Fine-tune a model on the Train screen, or through the API.'
      : hasMore ? `The newest ${SHOWN}.` : this.base === '/admin/jobs' ? '' : 'Fine-tuning jobs only; the admin key shows all.';
    fill(this.rows, jobs.map((job) => {
      const act = (verb) => button(verb[0].toUpperCase() + verb.slice(1), () => this.act(job, verb),
        {class: 'plain', 'data-job': `${job.id} ${verb}`, 'aria-label': `${verb} ${visible(job.title ?? job.id).slice(0, 60)}`});
      const done = job.finished ? job.finished - job.created : null;
      return h('tr', null, h('th', {scope: 'row'}, name(job.title ?? job.id, 50), job.error ? h('div.bad', null, visible(job.error).slice(0, 300)) : null),
        h('td', null, name(job.type, 20)),
        h('td', null, h(`span.tag${job.status === 'failed' ? '.bad' : job.status === 'succeeded' ? '.good' : ''}`, null, job.status),
          job.status === 'running' && job.progress !== undefined ? ` ${number(job.progress * 100)} %` : ''),
        h('td', null, when(job.created)), h('td', null, done === null ? '–' : seconds(done)),
        h('td', null, ACTIVE.includes(job.status) ? [act(job.status === 'paused' ? 'resume' : 'pause'), act('cancel')] : null));
    }));
    if (focused) [...this.rows.querySelectorAll('button')].find((b) => b.dataset.job === focused)?.focus();
  }

  async act(job, verb) {
    try {
      if (verb === 'cancel' && !await this.app.confirm({title: 'Cancel this job?', text: 'Its training stops. Checkpoints that it wrote stay.', action: 'Cancel the job'})) return;
      await request('POST', `${this.base}/${encodeURIComponent(job.id)}/${verb}`);
      await this.load();
    } catch (error) {
      this.app.fail(error);
    }
  }

  close() {
    this.#isOver = true;
    clearTimeout(this.#timer);
  }
}
