// One job while it runs and after: figures, charts, samples, events and checkpoints.

import {h, fill, button, empty} from '../lib/dom.js';
import {request, stream} from '../lib/api.js';
import {chart} from '../lib/chart.js';
import {curl} from '../lib/curl.js';
import {clip, name, number, seconds, visible, when} from '../lib/text.js';
import {chatLink, isOver, stateTag} from './parts.js';

const POLL_MS = 1500;
const RETRY_MS = 2000;
const MOST_LINES = 500;
const MOST_SAMPLES = 40;

export class JobView {
  #over = new AbortController();
  #timer = 0;
  #frame = 0;

  constructor(root, app, id) {
    Object.assign(this, {app, id, job: null, checkpoints: []});
    this.path = `/v1/fine_tuning/jobs/${encodeURIComponent(id)}`;
    this.state = h('span', {role: 'status'});
    this.actions = h('div.row');
    this.note = h('div');
    this.bar = h('progress', {max: 1, value: 0, 'aria-label': 'Progress'});
    this.figures = h('dl.figures');
    this.loss = chart({title: 'Loss', x: 'step', format: (v) => number(v, 3)});
    this.rate = chart({title: 'Learning rate', x: 'step', zero: true, format: (v) => v === 0 ? '0' : v.toExponential(1)});
    this.speed = chart({title: 'Tokens per second', x: 'step', zero: true});
    this.accuracy = chart({title: 'Tokens predicted right', x: 'step', format: (v) => `${number(v * 100, 1)} %`});
    this.samples = h('div');
    this.points = h('div');
    this.log = h('ol.log', {tabindex: 0, 'aria-label': 'Events'});
    this.settings = h('div');
    this.body = h('div', null, h('div.card', null, this.bar, this.figures),
      h('div.grid.wide', null, [this.loss, this.accuracy, this.rate, this.speed].map((el) => h('div.card', null, el))),
      this.samples, this.points, h('div.card', null, h('h2', null, 'Events'), this.log), this.settings);
    fill(root, h('header', null, h('h1', null, name(id, 30)), this.state, h('div.grow'), this.actions, h('a', {href: '#/train'}, 'All jobs'),
      curl(() => [{path: this.path}, {path: `${this.path}/events?stream=true`}, {path: `${this.path}/checkpoints?limit=100`},
        this.job && !isOver(this.job) && {method: 'POST', path: `${this.path}/${this.job.status === 'paused' ? 'resume' : 'pause'}`},
        this.job && !isOver(this.job) && {method: 'POST', path: `${this.path}/cancel`}])), this.note, this.body);
    this.reset();
    this.poll(true);
    this.follow();
  }

  close() { this.#over.abort(); clearTimeout(this.#timer); cancelAnimationFrame(this.#frame); }

  reset() {
    Object.assign(this, {train: [], valid: [], right: [], rates: [], speeds: [], texts: [], lines: 0, total: 0, begun: null, last: null});
    fill(this.log);
  }

  // The stream begins with the first event each time, so a broken one starts over.
  async follow() {
    const {signal} = this.#over;
    while (!signal.aborted) {
      try {
        this.reset();
        await stream(`${this.path}/events?stream=true`, undefined, (event) => this.take(event), signal, {ask: false});
        if (!signal.aborted) await this.poll();
        if (!this.job || isOver(this.job)) return;
      } catch (error) {
        if (error.name === 'AbortError' || error.status === 404 || error.needsKey) return;
      }
      await new Promise((resolve) => setTimeout(resolve, RETRY_MS));
    }
  }

  take(event) {
    const d = event.data ?? {};
    if (event.type === 'metrics') {
      this.total = d.total_steps ?? this.total;
      if (d.train_loss !== undefined) {
        this.begun ??= {at: performance.now(), step: d.step};
        this.last = {...d, at: performance.now()};
        this.train.push([d.step, d.train_loss]);
        if (d.train_mean_token_accuracy != null) this.right.push([d.step, d.train_mean_token_accuracy]);
        if (d.learning_rate != null) this.rates.push([d.step, d.learning_rate]);
        if (d.tokens_per_second != null) this.speeds.push([d.step, d.tokens_per_second]);
      } else if (d.valid_loss !== undefined) this.valid.push([d.step, d.valid_loss]);
    } else if (d.sample !== undefined) this.texts.push(d);
    else this.write(event);
    this.draw();
  }

  write(event) {
    if (++this.lines > MOST_LINES) this.log.firstChild.remove();
    const atEnd = this.log.scrollHeight - this.log.scrollTop - this.log.clientHeight < 40;
    this.log.append(h('li', {class: event.level === 'error' ? 'bad' : event.level === 'warn' ? 'warn' : null}, h('span.muted', null, `${when(event.created_at)} `), clip(visible(event.message), 2000)));
    if (atEnd) this.log.scrollTop = this.log.scrollHeight;
  }

  // Many events may come at once: draws them together.
  draw() {
    if (this.#frame) return;
    this.#frame = requestAnimationFrame(() => { this.#frame = 0; this.drawNow(); });
  }

  drawNow() {
    const series = (label, points) => [{name: label, points}];
    this.loss.set([{name: 'training', points: this.train}, ...(this.valid.length ? [{name: 'validation', points: this.valid}] : [])]);
    this.accuracy.set(series('accuracy', this.right));
    this.rate.set(series('learning rate', this.rates));
    this.speed.set(series('tokens per second', this.speeds));
    const {last, total} = this;
    this.bar.max = total || 1;
    this.bar.value = last?.step ?? 0;
    fill(this.figures, [['Step', last ? `${number(last.step)} of ${number(total)}` : '–'], ['Loss', last ? number(last.train_loss, 3) : '–'],
      this.valid.length ? ['Validation loss', number(this.valid.at(-1)[1], 3)] : null, ['Tokens per second', last ? number(last.tokens_per_second) : '–'], ['Remaining', this.remaining()]]
      .filter(Boolean).map(([label, value]) => h('div', null, h('dt', null, label), h('dd', null, value))));
    const shown = this.texts.slice(-MOST_SAMPLES).reverse();
    if (shown.length !== this.drawnTexts) {
      this.drawnTexts = shown.length;
      fill(this.samples, shown.length > 0 && h('div.card', null, h('h2', null, 'Samples'), h('div.samples', {tabindex: 0, role: 'region', 'aria-label': 'Samples'}, shown.map((s) =>
        h('figure', null, h('figcaption.muted', null, `After step ${number(s.step)}`), h('p.text', {dir: 'auto'}, clip(visible(s.sample), 4000)))))));
    }
  }

  remaining() {
    if (this.job && isOver(this.job)) return 'done';
    if (!this.last || this.job?.status !== 'running') return '–';
    const done = this.last.step - this.begun.step, took = (this.last.at - this.begun.at) / 1000;
    // The first events of a run that had begun earlier come at once and say nothing about its speed.
    if (took > 1 && done > 1) return seconds((this.total - this.last.step) * took / done);
    return this.job.estimated_finish ? seconds(Math.max(0, this.job.estimated_finish - Date.now() / 1000)) : '–';
  }

  async poll(first = false) {
    clearTimeout(this.#timer);
    const {signal} = this.#over;
    try {
      const job = await request('GET', this.path, undefined, {signal, ask: first});
      const points = (await request('GET', `${this.path}/checkpoints?limit=100`, undefined, {signal, ask: false})).data;
      this.show(job, points);
    } catch (error) {
      if (error.name === 'AbortError') return;
      if (error.status === 404 || first) {
        fill(this.body, empty('This job could not be read', visible(this.app.sentence(error)), h('a.button', {href: '#/train'}, 'All jobs')));
        return;
      }
      fill(this.state, h('span.tag.bad', null, 'no connection'));
    }
    if (!this.job || !isOver(this.job)) this.#timer = setTimeout(() => this.poll(), POLL_MS);
  }

  show(job, points) {
    const was = this.job?.status;
    this.job = job;
    if (was !== job.status) {
      fill(this.state, stateTag(job.status));
      this.showActions();
      this.showSettings();
      fill(this.note, job.error?.message && h('div.note.bad', null, clip(visible(job.error.message), 4000)),
        job.status === 'succeeded' && h('div.note', null, 'The model answers now as ', name(job.fine_tuned_model), '. ',
          chatLink(job.fine_tuned_model, job.model, 'Chat with it beside its base', {class: 'button primary'})));
      this.draw();
    }
    const shape = JSON.stringify(points);
    if (shape === this.shape) return;
    this.shape = shape;
    fill(this.points, points.length > 0 && h('div.card', null, h('h2', null, 'Checkpoints'), h('div.scroll', {tabindex: 0, role: 'region', 'aria-label': 'Checkpoints'}, h('table', null,
      h('thead', null, h('tr', null, h('th.num', {scope: 'col'}, 'Step'), h('th.num', {scope: 'col'}, 'Loss'), h('th.num', {scope: 'col'}, 'Validation'), h('th', {scope: 'col'}, 'Model'), h('th', {scope: 'col'}, 'Try'))),
      h('tbody', null, points.map((p) => h('tr', null, h('td.num', null, number(p.step_number)), h('td.num', null, number(p.metrics.train_loss, 3)), h('td.num', null, number(p.metrics.valid_loss, 3)),
        h('td', null, name(p.fine_tuned_model_checkpoint, 60)), h('td', null, chatLink(p.fine_tuned_model_checkpoint, job.model, 'Chat with it', {'aria-label': `Chat with the checkpoint of step ${p.step_number}`})))))))));
  }

  showActions() {
    const {job} = this;
    const call = (what) => this.app.try(async () => { this.show(await request('POST', `${this.path}/${what}`, {}), JSON.parse(this.shape ?? '[]')); });
    const again = h('a.button', {href: `#/train?${new URLSearchParams({new: 1, file: job.training_file, model: job.model, method: job.method?.type ?? 'supervised', format: job.hyperparameters?.format ?? 'auto'})}`}, 'Train again');
    fill(this.actions, isOver(job) ? again : [
      job.status === 'paused' ? button('Resume', call('resume'), {class: 'primary'}) : job.status === 'running' && button('Pause', call('pause')),
      button('Cancel', this.app.try(async () => {
        if (await this.app.confirm({title: 'Cancel this job?', text: 'It stops for good. Its checkpoints stay and answer.', action: 'Cancel the job'})) await call('cancel')();
      }), {class: 'danger'})]);
  }

  showSettings() {
    const {job} = this, rows = Object.entries(job.hyperparameters ?? {});
    const spell = (value) => typeof value === 'object' && value !== null ? JSON.stringify(value) : String(value);
    fill(this.settings, h('details.card', null, h('summary', null, 'Settings'), h('div.scroll', {tabindex: 0, role: 'region', 'aria-label': 'Settings'}, h('table', null, h('tbody', null,
      [['model', job.model], ['method', job.method?.type], ['training_file', job.training_file], ['validation_file', job.validation_file], ['seed', job.seed], ...rows]
        .filter(([, value]) => value != null).map(([key, value]) => h('tr', null, h('th', {scope: 'row'}, key), h('td.mono', null, clip(visible(spell(value)), 600)))))))));
  }
}
