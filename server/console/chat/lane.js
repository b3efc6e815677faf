// A lane: one model's side of a conversation, with its messages on the screen.

import {h, fill, button} from '../lib/dom.js';
import {stream} from '../lib/api.js';
import {clip, visible} from '../lib/text.js';
import {messageView, tokensOf} from './message.js';
import {addNode, bodyOf, choose, path, renderBodyOf} from './tree.js';

const MAX_TOKENS = 20_000;  // whose probabilities are kept

// Adds a chunk of the stream to the message.
function take(node, tokens, event) {
  if (event.usage) node.usage = event.usage;
  const choice = event.choices?.[0];
  if (!choice) return;
  const delta = choice.delta ?? {};
  if (delta.content) node.content += delta.content;
  if (delta.reasoning_content) node.reasoning = (node.reasoning ?? '') + delta.reasoning_content;
  for (const part of delta.tool_calls ?? []) {
    node.calls ??= [];
    const call = node.calls[part.index ?? 0] ??= {name: '', arguments: ''};
    call.id ??= part.id;
    call.name += part.function?.name ?? part.custom?.name ?? '';
    call.arguments += part.function?.arguments ?? part.custom?.input ?? '';
  }
  for (const t of choice.logprobs?.content ?? []) {
    if (tokens.length >= MAX_TOKENS) break;
    tokens.push({text: t.token, logprob: t.logprob, top: (t.top_logprobs ?? []).map((top) => ({text: top.token, logprob: top.logprob}))});
  }
  if (choice.finish_reason) node.finish = choice.finish_reason;
  return Boolean(delta.content || delta.reasoning_content || delta.tool_calls);
}

export class Lane {
  #abort = null;
  #views = new Map();

  // `screen`: {chat, app, models(), changed(), closeLane(lane)}.
  constructor(data, screen) {
    this.data = data;
    this.screen = screen;
    this.list = h('ol.messages');
    this.scroller = h('div.scroller', {tabindex: 0, role: 'region', 'aria-label': 'Messages'}, this.list);
    // Speaks the answer sentence by sentence; the list itself changes too often for a screen reader.
    this.spoken = h('div.hide', {'aria-live': 'polite'});
    this.select = h('select', {'aria-label': 'Model', onchange: () => { data.model = this.select.value; screen.changed(); }});
    this.close = button('×', () => screen.closeLane(this), {class: 'plain', 'aria-label': 'Close this side'});
    this.el = h('section.lane', {'aria-label': 'Conversation'}, h('div.row.lane-head', null, h('div.grow', null, this.select), this.close), this.scroller, this.spoken);
    this.draw();
  }

  get busy() { return this.#abort !== null; }

  showModels(models) {
    const known = models.some((m) => m.id === this.data.model);
    fill(this.select, !known && this.data.model ? h('option', {value: this.data.model}, `${clip(visible(this.data.model), 70)} (not served now)`) : null,
      models.map((m) => h('option', {value: m.id}, clip(visible(m.id), 70) + (m.parent ? ` (on ${clip(visible(m.parent), 30)})` : ''))));
    this.select.value = this.data.model;
  }

  draw() {
    this.#views.clear();
    const nodes = path(this.data);
    fill(this.list, nodes.map((node) => {
      const view = messageView(node, this);
      this.#views.set(node.id, view);
      return view;
    }), nodes.at(-1)?.role === 'user' && !this.busy ? h('li', null, button('Answer', () => this.answer(nodes.at(-1).id))) : null);
    this.scroller.scrollTop = this.scroller.scrollHeight;
    this.screen.changed();
  }

  // The body of the request that would answer the last message, or `text` after it.
  body(text) {
    const nodes = path(this.data);
    return bodyOf(this.screen.chat, this.data, text ? [...nodes, {role: 'user', content: text}] : nodes);
  }
  renderBody(node) { return renderBodyOf(bodyOf(this.screen.chat, {...this.data, model: node.model ?? this.data.model}, path(this.data, node.parent))); }

  choose(node) { choose(this.data, node); this.draw(); }

  edit(node, text) {
    const {role, model} = node;
    const added = addNode(this.data, node.parent, {role, content: text, ...(model ? {model} : {})});
    if (role === 'user') return this.answer(added.id);
    this.draw();
  }

  send(text) {
    this.stop();
    return this.answer(addNode(this.data, this.data.leaf, {role: 'user', content: text}).id);
  }

  regenerate(node) { return this.answer(node.parent); }

  stop() { this.#abort?.abort(); }

  #speak(node, state, isLast) {
    const now = performance.now();
    if (!isLast && now - state.at < 1500) return;
    const end = isLast ? node.content.length : Math.max(...['. ', '! ', '? ', '\n'].map((mark) => node.content.lastIndexOf(mark) + 1));
    if (end <= state.end) return;
    this.spoken.textContent = clip(visible(node.content.slice(state.end, end)), 1000);
    Object.assign(state, {end, at: now});
  }

  async answer(parent) {
    this.stop();
    const body = bodyOf(this.screen.chat, this.data, path(this.data, parent));
    const node = addNode(this.data, parent, {role: 'assistant', content: '', model: this.data.model});
    const abort = this.#abort = new AbortController();
    this.draw();
    const view = this.#views.get(node.id);
    view.settle(true);
    const tokens = [], spoken = {end: 0, at: performance.now()};
    const begin = performance.now();
    let first = 0, last = 0, frame = 0;
    const show = () => {
      frame = 0;
      const {scroller} = this;
      const isAtEnd = scroller.scrollHeight - scroller.scrollTop - scroller.clientHeight < 80;
      view.update();
      if (isAtEnd) scroller.scrollTop = scroller.scrollHeight;
      this.#speak(node, spoken, false);
    };
    try {
      await stream('/v1/chat/completions', body, (event) => {
        if (take(node, tokens, event)) { last = performance.now(); first ||= last; }
        frame ||= requestAnimationFrame(show);
      }, abort.signal);
    } catch (error) {
      if (error.name === 'AbortError') node.finish = 'stopped';
      else node.error = this.screen.app.sentence(error);
    }
    cancelAnimationFrame(frame);
    if (first) node.first = (first - begin) / 1000;
    const n = node.usage?.completion_tokens ?? tokens.length;
    // Chunks that arrive together say nothing about the speed after the first one.
    if (n > 1 && last > first) node.rate = last - first > 100 ? (n - 1) / ((last - first) / 1000) : n / ((last - begin) / 1000);
    if (tokens.length) tokensOf.set(node, tokens);
    if (this.#abort === abort) this.#abort = null;
    view.settle(false);
    show();
    this.#speak(node, spoken, true);
    this.screen.changed(true);
  }
}
