// Server: what runs now, from GET /metrics every two seconds, and with an admin key the jobs and keys.

import {h, fill, button} from '../lib/dom.js';
import {key, request} from '../lib/api.js';
import {curl} from '../lib/curl.js';
import {chart} from '../lib/chart.js';
import {bytes, name, number, seconds, visible} from '../lib/text.js';
import {buckets, parseMetrics, quantile, sum} from '../lib/metrics.js';
import {JobsCard} from '../server/jobs.js';
import {KeysCard} from '../server/keys.js';

const EVERY_MS = 2000;
const KEPT = 150;        // readings: five minutes
const LATENCY_SPAN = 30; // readings of the latency table: one minute
const KINDS = ['weights', 'kv', 'scratch'];
const LATENCIES = [
  ['time_to_first_token_seconds', 'Time to first token'],
  ['inter_token_latency_seconds', 'Between tokens'],
  ['request_queue_time_seconds', 'Waiting for a place'],
  ['e2e_request_latency_seconds', 'Whole request'],
];

// Readings outlive the screen, so that charts do not begin anew.
const readings = [];

const rate = (now, before, metric) => before ? Math.max(0, sum(now.metrics, metric) - sum(before.metrics, metric)) / (now.at - before.at) : 0;

class ServerScreen {
  #timer = 0;
  #isOver = false;

  constructor(root, app) {
    this.app = app;
    this.root = root;
    this.state = h('span.tag', {role: 'status'}, 'connecting');
    this.figures = h('dl.figures');
    this.speed = chart({title: 'Tokens per second', zero: true, x: 'seconds ago'});
    this.load = chart({title: 'Requests', zero: true, x: 'seconds ago'});
    this.cache = chart({title: 'KV cache in use', zero: true, x: 'seconds ago', format: (v) => `${number(v, 1)} %`});
    this.latency = h('tbody');
    this.span = h('span.muted');
    this.memory = h('div');
    this.models = h('tbody');
    this.jobs = new JobsCard(app);
    this.keys = new KeysCard(app);
    this.note = h('div');
    this.body = h('div', null,
      h('div.card', null, this.figures),
      h('div.grid', null, [this.speed, this.load, this.cache].map((el) => h('div.card', null, el))),
      h('div.grid', null,
        h('div.card', null, h('h2', null, 'Latency ', this.span), h('div.scroll', {tabindex: 0, role: 'region', 'aria-label': 'Latency'}, h('table', null,
          h('thead', null, h('tr', null, h('th', {scope: 'col'}, 'Of'), ['p50', 'p90', 'p99'].map((p) => h('th.num', {scope: 'col'}, p)))), this.latency))),
        h('div.card', null, h('h2', null, 'Memory'), this.memory)),
      h('div.card', null, h('h2', null, 'Models'), h('div.scroll', {tabindex: 0, role: 'region', 'aria-label': 'Models'}, h('table', null,
        h('thead', null, h('tr', null, h('th', {scope: 'col'}, 'Model'),
          ['Running', 'Waiting', 'KV cache', 'Memory', 'Prompt tokens', 'of them cached', 'Generated'].map((t) => h('th.num', {scope: 'col'}, t)))), this.models))),
      this.jobs.el, this.keys.el);
    fill(root, h('header', null, h('h1', null, 'Server'), this.state, h('div.grow'), curl(() => [{path: '/metrics'}, {path: '/health'}])), this.note, this.body);
    this.onKey = () => { this.read(); this.jobs.reload(); this.keys.load(); };
    addEventListener('tandem-key', this.onKey);
    this.read();
    this.jobs.load();
    this.keys.load();
  }

  async read() {
    clearTimeout(this.#timer);
    try {
      const metrics = parseMetrics(await request('GET', '/metrics', undefined, {ask: false}));
      if (this.#isOver) return;
      const now = {at: performance.now() / 1000, metrics};
      now.generated = rate(now, readings.at(-1), 'generation_tokens_total');
      now.prompt = rate(now, readings.at(-1), 'prompt_tokens_total');
      readings.push(now);
      if (readings.length > KEPT) readings.shift();
      fill(this.note);
      this.body.hidden = false;
      this.draw(now);
    } catch (error) {
      if (this.#isOver) return;
      this.state.textContent = error.needsKey ? 'locked' : 'no answer';
      this.body.hidden = readings.length === 0;
      fill(this.note, h('div.note.bad', null, h('p', null, error.needsKey ? 'The figures of this server need a metrics key, a key with the scope admin, or the admin key.' : visible(this.app.sentence(error))),
        error.needsKey ? button('Enter key', async () => { await key.ask(error); }) : null));
    }
    if (!this.#isOver) this.#timer = setTimeout(() => this.read(), document.hidden ? 5 * EVERY_MS : EVERY_MS);
  }

  draw(now) {
    const {metrics} = now;
    const isReady = sum(metrics, 'ready') === 1, isHealthy = sum(metrics, 'healthy') === 1;
    this.state.textContent = !isHealthy ? 'stuck' : isReady ? 'ready' : 'not ready';
    this.state.className = `tag ${isHealthy && isReady ? 'good' : 'bad'}`;
    const kv = (metrics.get('kv_cache_usage_perc') ?? []).map((s) => s.value);
    now.kv = 100 * Math.max(0, ...kv);
    const disk = sum(metrics, 'data_disk_free_bytes');
    const shown = [
      ['Running', number(sum(metrics, 'num_requests_running'))], ['Waiting', number(sum(metrics, 'num_requests_waiting'))],
      ['Generated', `${number(now.generated)} tokens/s`], ['Prompts', `${number(now.prompt)} tokens/s`],
      ['KV cache', `${number(now.kv, 1)} %`], ['Connections', number(sum(metrics, 'http_connections'))],
      ['Process memory', bytes(sum(metrics, 'process_resident_memory_bytes'))], disk ? ['Free disk', bytes(disk)] : null,
    ].filter(Boolean);
    fill(this.figures, shown.map(([what, value]) => h('div', null, h('dt', null, what), h('dd', null, value))));
    const series = (title, get) => ({name: title, points: readings.map((r) => [r.at - now.at, get(r)])});
    this.speed.set([series('generated', (r) => r.generated), series('prompt', (r) => r.prompt)]);
    this.load.set([series('running', (r) => sum(r.metrics, 'num_requests_running')), series('waiting', (r) => sum(r.metrics, 'num_requests_waiting'))]);
    this.cache.set([series('in use', (r) => r.kv ?? 0)]);
    this.drawLatency(metrics);
    this.drawMemory(metrics);
    this.drawModels(metrics);
  }

  // Of the last minute; of all time if nothing ended in it.
  drawLatency(metrics) {
    const before = readings.at(-1 - LATENCY_SPAN)?.metrics ?? readings[0].metrics;
    const isRecent = sum(metrics, 'e2e_request_latency_seconds_count') > sum(before, 'e2e_request_latency_seconds_count');
    this.span.textContent = isRecent ? 'of the last minute' : 'since the start';
    fill(this.latency, LATENCIES.map(([metric, title]) => {
      const list = buckets(metrics, metric, isRecent ? before : null);
      return h('tr', null, h('th', {scope: 'row'}, title), [0.5, 0.9, 0.99].map((q) => h('td.num', null, seconds(quantile(list, q)))));
    }));
  }

  drawMemory(metrics) {
    const budget = sum(metrics, 'memory_budget_bytes'), used = sum(metrics, 'memory_used_bytes');
    const parts = KINDS.map((kind) => [kind, sum(metrics, 'model_memory_bytes', (l) => l.kind === kind)]);
    const rest = Math.max(0, used - parts.reduce((total, [, n]) => total + n, 0));
    if (rest) parts.push(['other', rest]);
    fill(this.memory, h('p', null, h('strong', null, bytes(used)), ` of ${bytes(budget)} budget`),
      h('div.meter', {role: 'img', 'aria-label': parts.map(([kind, n]) => `${kind} ${bytes(n)}`).join(', ')},
        parts.map(([, n], i) => h(`span.s${i}`, {style: {width: `${budget ? n / budget * 100 : 0}%`}}))),
      h('ul.keys', null, parts.map(([kind, n], i) => h('li', null, h(`span.key.s${i}`), `${kind === 'kv' ? 'KV cache' : kind}: ${bytes(n)}`))));
  }

  drawModels(metrics) {
    const of = (metric, model) => sum(metrics, metric, (l) => l.model_name === model);
    const ids = [...new Set(['num_requests_running', 'prompt_tokens_total', 'model_memory_bytes'].flatMap((m) => (metrics.get(m) ?? []).map((s) => s.labels.model_name)))];
    fill(this.models, ids.filter(Boolean).slice(0, 200).map((id) => h('tr', null, h('th', {scope: 'row'}, name(id)),
      [number(of('num_requests_running', id)), number(of('num_requests_waiting', id)), `${number(100 * of('kv_cache_usage_perc', id), 1)} %`,
        bytes(of('model_memory_bytes', id)), number(of('prompt_tokens_total', id)), number(of('prefix_cache_hits_total', id)), number(of('generation_tokens_total', id))]
        .map((text) => h('td.num', null, text)))));
  }

  close() {
    this.#isOver = true;
    clearTimeout(this.#timer);
    removeEventListener('tandem-key', this.onKey);
    this.jobs.close();
  }
}

let screen = null;
export function mount(root, app) { screen = new ServerScreen(root, app); }
export function unmount() { screen.close(); screen = null; }
