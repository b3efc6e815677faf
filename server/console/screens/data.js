// Data: upload a training file and see what training would read: bad rows, lengths, tokens and loss mask.

import {h, fill, button, empty, field} from '../lib/dom.js';
import {request, upload} from '../lib/api.js';
import {curl} from '../lib/curl.js';
import {bytes, clip, name, number, visible, when} from '../lib/text.js';
import {renderedStrip} from '../lib/tokens.js';

const KINDS = ['.jsonl', '.ndjson', '.json', '.csv', '.parquet'];
const FORMATS = {
  supervised: [['auto', 'Found by its columns'], ['messages', 'Chats (messages)'], ['sharegpt', 'ShareGPT (conversations)'], ['alpaca', 'Alpaca (instruction, output)'],
    ['prompt_completion', 'prompt, completion'], ['text', 'text']],
  dpo: [['auto', 'Found by its columns'], ['openai_preference', 'OpenAI (input, preferred_output …)'], ['preference', 'prompt, chosen, rejected']],
};
const STOPS = {rows: 'the row limit', bytes: 'the limit of rendered text', time: 'the time limit'};

const options = (list, chosen) => list.map(([value, text]) => h('option', {value, selected: value === chosen}, text));
export const modelOptions = (models, chosen) => options(models.map((m) => [m.id, clip(visible(m.id), 60)]), chosen);

class DataScreen {
  #over = new AbortController();
  #sending = null;

  constructor(root, app) {
    Object.assign(this, {root, app, id: app.params.get('file') ?? ''});
    this.picker = h('input.hide', {type: 'file', accept: KINDS.join(','), 'aria-label': 'Training file', tabindex: -1, onchange: () => { this.send(this.picker.files[0]); this.picker.value = ''; }});
    this.progress = h('div', {role: 'status'});
    this.drop = h('div.card.drop', null,
      h('p.grow', null, h('strong', null, 'Drop a file here'), h('br'), h('span.muted', null, 'JSON lines, JSON, CSV or Parquet: chats, instructions, prompts with answers, or pairs of answers.')),
      button('Choose a file', () => this.picker.click(), {class: 'primary'}), this.picker, this.progress);
    this.files = h('div');
    this.result = h('div', {'aria-live': 'polite'});
    this.model = h('select');
    this.method = h('select', {onchange: () => this.showFormats()}, options([['supervised', 'Examples to imitate'], ['dpo', 'Pairs of answers (DPO)']], app.params.get('method')));
    this.format = h('select');
    this.rows = h('select', null, options([['1000', '1,000'], ['10000', '10,000'], ['100000', '100,000'], ['1000000', '1,000,000']], '10000'));
    this.showFormats();
    this.form = h('form.card', {hidden: true, onsubmit: (event) => { event.preventDefault(); this.examine(); }},
      this.heading = h('h2'),
      h('div.grid.tight', null, field('Base model', this.model, 'Its tokenizer and chat template make the tokens.'), field('Method', this.method),
        field('Rows are', this.format), field('Read at most', this.rows, 'rows')),
      h('div.row', null, this.run = h('button.primary', {type: 'submit'}, 'Examine'), this.train = h('a.button', null, 'Train on it'),
        curl(() => ({path: this.path(), body: this.body()}))));
    fill(root, h('header', null, h('h1', null, 'Data'), h('div.grow'),
      curl(() => [{path: '/v1/files', file: 'chats.jsonl', fields: {purpose: 'fine-tune'}}, {path: '/v1/files?purpose=fine-tune'}])),
    this.drop, this.form, this.result, this.files);
    this.#listen();
    this.load();
  }

  #listen() {
    const {signal} = this.#over;
    const over = (event, on) => {
      if (![...(event.dataTransfer?.types ?? [])].includes('Files')) return false;
      event.preventDefault();
      this.drop.classList.toggle('over', on);
      return true;
    };
    document.addEventListener('dragover', (event) => over(event, true), {signal});
    document.addEventListener('dragleave', (event) => over(event, event.relatedTarget !== null), {signal});
    document.addEventListener('drop', (event) => { if (over(event, false)) this.send(event.dataTransfer.files[0]); }, {signal});
  }

  close() { this.#over.abort(); this.#sending?.abort(); }

  showFormats() { fill(this.format, options(FORMATS[this.method.value])); }
  path() { return `/v1/files/${encodeURIComponent(this.id)}/examine`; }
  body() { return {model: this.model.value, method: this.method.value, format: this.format.value, rows: Number(this.rows.value)}; }

  async load() {
    try {
      const {signal} = this.#over;
      const [models, list] = await Promise.all([this.app.models({signal}), request('GET', '/v1/files?purpose=fine-tune&limit=100', undefined, {signal})]);
      fill(this.model, modelOptions(models, this.model.value || this.app.params.get('model') || undefined));
      this.list = list.data;
      this.draw(list.has_more);
      if (this.id && !this.examined) {
        if (this.list.some((file) => file.id === this.id)) this.open(this.id);
        else this.app.toast('That file is not on this server any more.', true);
      }
    } catch (error) {
      if (error.name === 'AbortError') return;
      fill(this.files, empty('The files could not be listed', visible(this.app.sentence(error)), button('Try again', () => this.load())));
    }
  }

  draw(more) {
    if (!this.list.length) {
      fill(this.files, empty('No training files yet', 'A file of at least ten examples is enough to begin.'));
      return;
    }
    fill(this.files, h('div.card', null, h('h2', null, 'Files'), h('div.scroll', {tabindex: 0, role: 'region', 'aria-label': 'Files'}, h('table', null,
      h('thead', null, h('tr', null, ['File', 'Size', 'Uploaded', 'Actions'].map((t) => h('th', {scope: 'col'}, t)))),
      h('tbody', null, this.list.map((file) => h('tr', {'aria-current': file.id === this.id ? 'true' : null},
        h('td', null, name(file.filename), h('br'), h('small.mono', null, file.id)), h('td', null, bytes(file.bytes)), h('td', null, when(file.created_at)),
        h('td', null, h('div.row', null,
          button('Examine', () => this.open(file.id), {'aria-label': `Examine ${clip(visible(file.filename), 60)}`}),
          button('Delete', this.app.try(() => this.remove(file)), {class: 'plain', 'aria-label': `Delete ${clip(visible(file.filename), 60)}`})))))))),
    more && h('p.muted', null, 'Older files are not shown.')));
  }

  async remove(file) {
    const yes = await this.app.confirm({title: 'Delete this file?', text: `${clip(visible(file.filename), 100)} is removed from the server. Finished models stay.`, action: 'Delete'});
    if (!yes) return;
    await request('DELETE', `/v1/files/${encodeURIComponent(file.id)}`);
    if (file.id === this.id) { this.select(''); this.form.hidden = true; fill(this.result); }
    await this.load();
  }

  async send(file) {
    if (!file || this.#sending) return;
    if (!KINDS.some((ending) => file.name.toLowerCase().endsWith(ending))) {
      return this.app.toast(`${file.name} is not one of ${KINDS.join(', ')}. Rename it if it holds such rows.`, true);
    }
    this.#sending = new AbortController();
    const bar = h('progress', {max: 1, value: 0, 'aria-label': `Upload of ${clip(visible(file.name), 60)}`});
    const text = h('span.muted');
    fill(this.progress, bar, h('div.row', null, text, button('Stop', () => this.#sending?.abort(), {class: 'plain'})));
    try {
      const made = await upload('/v1/files', file, {purpose: 'fine-tune'}, (sent, all) => {
        bar.max = all; bar.value = sent;
        text.textContent = `${bytes(sent)} of ${bytes(all)}`;
      }, this.#sending.signal);
      this.select(made.id);
      await this.load();
    } catch (error) {
      this.app.fail(error);
    } finally {
      this.#sending = null;
      fill(this.progress);
    }
  }

  select(id) {
    this.id = id;
    this.examined = false;
    history.replaceState(null, '', id ? `#/data?file=${encodeURIComponent(id)}` : '#/data');
    if (this.list) this.draw();
  }

  open(id) {
    this.select(id);
    const file = this.list.find((one) => one.id === id);
    fill(this.heading, name(file?.filename ?? id));
    this.form.hidden = false;
    return this.examine();
  }

  async examine() {
    const mine = this.id;
    this.examined = true;
    this.train.href = `#/train?${new URLSearchParams({file: mine, model: this.model.value, method: this.method.value, format: this.format.value})}`;
    this.#reading?.abort();
    this.#reading = new AbortController();
    const {signal} = this.#reading;
    this.#over.signal.addEventListener('abort', () => this.#reading.abort(), {signal});
    this.run.disabled = true;
    fill(this.result, h('div.card', null, h('p.muted', null, 'Reading the rows as training does…'), h('progress', {'aria-label': 'Examination'})));
    try {
      const found = await request('POST', this.path(), this.body(), {signal});
      if (mine === this.id) fill(this.result, findings(found));
    } catch (error) {
      if (error.name === 'AbortError') return;
      fill(this.result, h('div.note.bad', null, visible(this.app.sentence(error))));
    } finally {
      if (this.#reading?.signal === signal) this.run.disabled = false;
    }
  }
  #reading = null;
}

const figure = (label, value, bad) => h('div', null, h('dt', null, label), h(`dd${bad ? '.bad' : ''}`, null, value));

function findings(f) {
  const share = f.tokens.total ? f.tokens.trained / f.tokens.total : null;
  const few = f.complete && f.bad_rows === 0 && f.rows < 10;
  return [
    h('div.card', null,
      !f.complete && h('div.note', null, `Only the first ${number(f.checked_rows)} of ${number(f.rows)} rows were read: ${STOPS[f.stopped_by] ?? 'a limit'} ended the check. All figures are about these rows.`),
      f.bad_rows > 0 && h('div.note.bad', null, `${number(f.bad_rows)} ${f.bad_rows === 1 ? 'row is' : 'rows are'} bad. A job refuses this file until ${f.bad_rows === 1 ? 'it is' : 'they are'} repaired.`),
      few && h('div.note.bad', null, `A job needs at least 10 examples; this file has ${number(f.rows)}.`),
      f.complete && f.bad_rows === 0 && !few && h('div.note', null, 'Every row is good.'),
      h('dl.figures', null, figure('Rows', number(f.rows)), figure('Bad rows', number(f.bad_rows), f.bad_rows > 0), figure('Samples', number(f.samples)),
        figure('Tokens', number(f.tokens.total)), figure('Learned', share === null ? '–' : `${number(share * 100, 1)} %`), figure('Longest', `${number(f.tokens.longest)} tokens`),
        f.duplicates > 0 && figure('Duplicates', number(f.duplicates)), f.over_length > 0 && figure('Longer than a row', number(f.over_length)),
        f.split_rows > 0 && figure('Split by answers', number(f.split_rows)), f.format && figure('Rows are', f.format))),
    f.errors.length > 0 && h('div.card', null, h('h2', null, 'Bad rows'), h('div.scroll', {tabindex: 0, role: 'region', 'aria-label': 'Bad rows'}, h('table.errors', null,
      h('thead', null, h('tr', null, h('th.num', {scope: 'col'}, 'Line'), h('th', {scope: 'col'}, 'Reason'))),
      h('tbody', null, f.errors.map((e) => h('tr', null, h('td.num', null, e.line === null ? '–' : number(e.line)), h('td.text', null, clip(visible(e.message), 2000))))))),
    f.bad_rows > f.errors.length && h('p.muted', null, `And ${number(f.bad_rows - f.errors.length)} more.`)),
    f.tokens.histogram.length > 0 && lengths(f.tokens.histogram),
    f.examples.length > 0 && h('div.card', null, h('h2', null, 'As trained on'),
      h('p.muted', null, h('span.tok.loss', null, 'Learned'), ' tokens change the model; the others are only read.'), f.examples.map(example)),
  ];
}

const strip = (sequence, label) => [renderedStrip(sequence.tokens, {label, loss: true}),
  sequence.count > sequence.tokens.length && h('p.muted', null, `The first ${number(sequence.tokens.length)} of ${number(sequence.count)} tokens.`)];

function example(one, i) {
  const title = `Sample ${i + 1}`;
  if (!one.chosen) return h('section', null, h('h3', null, title), strip(one, `${title}, learned tokens marked`));
  return h('section', null, h('h3', null, `${title}: preferred answer`), strip(one.chosen, `${title}, preferred answer`),
    h('h3', null, `${title}: other answer`), strip(one.rejected, `${title}, other answer`));
}

function lengths(histogram) {
  const most = Math.max(...histogram.map((b) => b.samples), 1);
  return h('div.card', null, h('h2', null, 'Lengths'), h('div.scroll', {tabindex: 0, role: 'region', 'aria-label': 'Lengths'}, h('table.bars', null,
    h('thead', null, h('tr', null, h('th.num', {scope: 'col'}, 'Tokens'), h('th.num', {scope: 'col'}, 'Samples'), h('th', null, h('span.hide', null, 'Share')))),
    h('tbody', null, histogram.map((b) => h('tr', null, h('td.num', null, `${number(b.from)}–${number(b.to - 1)}`), h('td.num', null, number(b.samples)),
      h('td.wide', null, b.samples > 0 && h('span.bar', {style: {width: `${Math.max(0.5, b.samples / most * 100)}%`}}))))))));
}

let screen = null;
export function mount(root, app) { screen = new DataScreen(root, app); }
export function unmount() { screen.close(); screen = null; }
