// A new job: data, model, method, hyperparameters; then its plan; then the start.

import {h, fill, button, empty, field} from '../lib/dom.js';
import {request} from '../lib/api.js';
import {curl} from '../lib/curl.js';
import {bytes, clip, name, number, seconds, visible} from '../lib/text.js';

// Number fields: key, label, minimum, maximum, step, hint. Empty means automatic.
const NUMBERS = [
  ['n_epochs', 'Epochs', 1, 50, 1, 'times through the file'], ['batch_size', 'Batch size', 1, 256, 1, 'examples per step'],
  ['learning_rate_multiplier', 'Learning rate ×', 0.001, 1000, 'any', ''], ['max_steps', 'Most steps', 1, 1e9, 1, 'no limit'],
  ['seq_len', 'Longest example', 16, 1e6, 1, 'tokens; as the file needs'], ['rank', 'Adapter rank', 1, 256, 1, '8'], ['alpha', 'Adapter alpha', 0.01, 1e6, 'any', '16'],
  ['beta', 'DPO beta', 0.001, 2, 'any', ''], ['checkpoint_every', 'Checkpoint every', 1, 1e9, 1, 'steps; at each epoch'], ['seed', 'Seed', 0, 2147483647, 1, 'random'],
];
const NAMES = {base: 'frozen base', masters: 'master weights', moments: 'optimiser', 'packed relu': 'packed activations', process: 'program'};

const option = (value, text, chosen) => h('option', {value, selected: value === chosen}, text);

export class NewJob {
  #over = new AbortController();

  constructor(root, app) {
    Object.assign(this, {root, app, inputs: {}});
    fill(root, h('header', null, h('h1', null, 'New job'), h('div.grow'), h('a', {href: '#/train'}, 'All jobs')), this.body = h('div'));
    this.load();
  }

  close() { this.#over.abort(); }

  async load() {
    const {signal} = this.#over;
    try {
      const [models, files] = await Promise.all([this.app.models({signal}), request('GET', '/v1/files?purpose=fine-tune&limit=100', undefined, {signal})]);
      if (!files.data.length) {
        fill(this.body, empty('A job needs a file of examples', 'Upload one on the Data screen; it shows what training would read.', h('a.button.primary', {href: '#/data'}, 'Go to Data')));
        return;
      }
      this.draw(models, files.data);
    } catch (error) {
      if (error.name === 'AbortError') return;
      fill(this.body, empty('This server cannot start a job now', visible(this.app.sentence(error)), button('Try again', () => this.load())));
    }
  }

  draw(models, files) {
    const {params} = this.app;
    const fileOptions = (chosen) => files.map((f) => option(f.id, `${clip(visible(f.filename), 50)} (${bytes(f.bytes)})`, chosen));
    this.file = h('select', null, fileOptions(params.get('file')));
    this.validation = h('select', null, option('', 'None'), fileOptions());
    this.model = h('select', null, models.map((m) => option(m.id, clip(visible(m.id), 60), params.get('model'))));
    this.method = h('select', null, option('supervised', 'Imitate the answers (supervised)'), option('dpo', 'Prefer one answer to another (DPO)', params.get('method') ?? ''));
    this.scope = h('select', null, option('lora', 'An adapter (LoRA): little memory, served beside its base'), option('full', 'All weights: a model of its own'));
    this.schedule = h('select', null, ['linear', 'cosine', 'constant'].map((s) => option(s, s)));
    this.suffix = h('input', {maxlength: 64, pattern: '[A-Za-z0-9_\\-]+', placeholder: 'none', spellcheck: 'false', autocomplete: 'off'});
    this.prompts = h('textarea', {rows: 2, placeholder: 'Tell me a story about a dog.', dir: 'auto'});
    this.every = h('input', {type: 'number', min: 1, step: 1, placeholder: '10'});
    for (const [key, , min, max, step, hint] of NUMBERS) {
      this.inputs[key] = h('input', {type: 'number', min, max, step, placeholder: hint.match(/^\d+$/) ? hint : 'auto'});
    }
    const fields = Object.fromEntries(NUMBERS.map(([key, label, , , , hint]) => [key, field(label, this.inputs[key], hint && !hint.match(/^\d+$/) ? hint : null)]));
    this.fields = fields;
    this.format = params.get('format') ?? 'auto';
    this.plan = h('div.result', {'aria-live': 'polite'});
    this.planButton = h('button.primary', {type: 'submit'}, 'Plan');
    this.curl = curl(() => [{path: '/v1/fine_tuning/plan', body: this.read()}, {path: '/v1/fine_tuning/jobs', body: this.read()}]);
    const changed = () => { this.show(); this.curl.update(); fill(this.plan); };
    fill(this.body, h('form', {onsubmit: (event) => { event.preventDefault(); this.look(); }, oninput: changed},
      h('div.card', null, h('h2', null, 'What it learns'), h('div.grid', null, field('Training file', this.file), field('Model to start from', this.model),
        field('Method', this.method), field('Trains', this.scope), field('Validation file', this.validation, 'Its loss shows whether the model learns or memorises.'),
        field('Name ending', this.suffix, 'Letters, digits, - and _; a part of the model\'s name.'))),
      h('div.card', null, h('h2', null, 'How'), h('p.muted', null, 'Empty fields are chosen by the size of the file; the plan shows what they become.'),
        h('div.grid.tight', null, fields.n_epochs, fields.batch_size, fields.learning_rate_multiplier, fields.rank, fields.alpha, fields.beta),
        h('details', null, h('summary', null, 'More settings'), h('div.grid.tight', null, fields.max_steps, fields.seq_len, field('Schedule', this.schedule), fields.checkpoint_every, fields.seed)),
        h('details', {open: true}, h('summary', null, 'Samples during the run'), h('div.grid.tight', null,
          field('Prompts', this.prompts, 'One per line, eight at most. The model answers them while it learns.'), field('Every', this.every, 'steps')))),
      h('div.row', null, this.planButton, this.curl)), this.plan);
    this.show();
  }

  show() {
    const isLora = this.scope.value === 'lora';
    this.fields.rank.hidden = this.fields.alpha.hidden = !isLora;
    this.fields.beta.hidden = this.method.value !== 'dpo';
  }

  // The body of the job.
  read() {
    const of = (key) => this.inputs[key].value === '' ? undefined : Number(this.inputs[key].value);
    const isLora = this.scope.value === 'lora', {value: type} = this.method;
    const prompts = this.prompts.value.split('\n').map((line) => line.trim()).filter(Boolean).slice(0, 8);
    const hyperparameters = {
      n_epochs: of('n_epochs') ?? 'auto', batch_size: of('batch_size') ?? 'auto', learning_rate_multiplier: of('learning_rate_multiplier') ?? 'auto',
      beta: type === 'dpo' ? of('beta') : undefined, max_steps: of('max_steps'), seq_len: of('seq_len'), checkpoint_every: of('checkpoint_every'), schedule: this.schedule.value,
      lora: isLora ? {rank: of('rank'), alpha: of('alpha')} : false, format: this.format,
      samples: prompts.length ? {every: Number(this.every.value) || 10, prompts} : undefined};
    return {model: this.model.value, training_file: this.file.value, validation_file: this.validation.value || undefined, suffix: this.suffix.value || undefined,
      seed: of('seed'), method: {type, [type]: {hyperparameters}}};
  }

  async look() {
    const body = this.read();
    this.planButton.disabled = true;
    fill(this.plan, h('div.card', null, h('p.muted', null, 'Checking the file and measuring this machine…'), h('progress', {'aria-label': 'Plan'})));
    try {
      const plan = await request('POST', '/v1/fine_tuning/plan', body, {signal: this.#over.signal});
      const el = planCard(plan, this.app.try(async () => {
        const job = await request('POST', '/v1/fine_tuning/jobs', body);
        this.app.go('train', {job: job.id});
      }));
      fill(this.plan, el);
      el.scrollIntoView({block: 'nearest'});
    } catch (error) {
      if (error.name !== 'AbortError') fill(this.plan, h('div.note.bad', null, visible(this.app.sentence(error))));
    } finally {
      this.planButton.disabled = false;
    }
  }
}

const figure = (label, value) => h('div', null, h('dt', null, label), h('dd', null, value));

function planCard(plan, start) {
  const refusal = plan.refusal && h('div.note.bad', null, h('strong', null, 'This job would be refused. '), clip(visible(plan.refusal.message), 3000));
  if (plan.steps === undefined) return h('div.card', null, h('h2', null, 'Plan'), refusal);
  const p = plan.hyperparameters, kinds = Object.entries(plan.bytes ?? {}).filter(([, n]) => n > 0).sort((a, b) => b[1] - a[1]);
  const trains = plan.parameters ? `${number(plan.trained)} of ${number(plan.parameters)}` : '–';
  return h('div.card', null, h('h2', null, 'Plan'), refusal,
    h('dl.figures', null, figure('Takes about', plan.seconds < 60 ? 'under a minute' : seconds(plan.seconds)), figure('Memory', bytes(plan.total_bytes)), figure('Steps', number(plan.steps)),
      figure('Examples', number(plan.examples)), plan.trained_tokens_per_epoch && figure('Learned tokens per epoch', number(plan.trained_tokens_per_epoch)), figure('Work', flops(plan.flops))),
    h('p.muted', null, `Epochs ${p.n_epochs}, batch size ${p.batch_size}, learning rate ${plan.learning_rate.toPrecision(2)} (× ${p.learning_rate_multiplier}), ${p.schedule}; `,
      `rows of ${number(plan.row_tokens)} tokens; trains ${trains} parameters. `,
      plan.speed && `The time is the work at ${number(plan.speed.assumed_share * 100)} % of this machine's measured ${flops(plan.speed.peak_flops_per_second)} per second; small models take longer. `,
      plan.is_checked === false && 'The file is large: the job checks its rows before the first step.'),
    kinds.length > 0 && memory(kinds, plan),
    (plan.changes ?? []).length > 0 && h('div', null, h('h3', null, 'Changes that would fit'), h('ul', null, plan.changes.map((c) =>
      h('li', null, h('code', null, visible(c.words)), ` ${bytes(c.total_bytes)}, ${number(c.time, 2)} × the work${c.same_result ? '' : ', changes the result'}`)))),
    (plan.notes ?? []).map((note) => h('p.muted', null, visible(note))),
    h('div.row', null, button('Start training', start, {class: 'primary', disabled: !plan.would_start})));
}

function memory(kinds, plan) {
  const all = Math.max(plan.budget_bytes, plan.total_bytes);
  return h('div', null, h('div.meter', {role: 'img', 'aria-label': `${bytes(plan.total_bytes)} of ${bytes(plan.budget_bytes)} free`},
    kinds.map(([, n], i) => h(`span.s${i % 4}`, {style: {width: `${n / all * 100}%`}}))),
  h('p.muted', null, `${bytes(plan.total_bytes)} of ${bytes(plan.budget_bytes)} free: `, kinds.map(([kind, n], i) => [i ? ', ' : '', name(NAMES[kind] ?? kind), ` ${bytes(n)}`])));
}

function flops(n) {
  let unit = 0;
  for (n = Number(n); n >= 1000 && unit < 6; ++unit) n /= 1000;
  return `${number(n, n < 10 ? 1 : 0)} ${['', 'K', 'M', 'G', 'T', 'P', 'E'][unit]}FLOP`;
}
