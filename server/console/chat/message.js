// One message of a conversation.

import {h, fill, button} from '../lib/dom.js';
import {request} from '../lib/api.js';
import {curl} from '../lib/curl.js';
import {copy, longText, name, number, seconds, visible} from '../lib/text.js';
import {longMarkdown} from '../lib/markdown.js';
import {logprobStrip, renderedStrip} from '../lib/tokens.js';
import {siblings} from './tree.js';

// Log-probabilities by message. Not stored: they are many times larger than the text.
export const tokensOf = new WeakMap();

function stats(node) {
  const out = [];
  const {usage, first, rate} = node;
  if (usage) out.push(`${number(usage.completion_tokens)} tokens`);
  if (rate) out.push(`${number(rate, rate < 10 ? 1 : 0)} tokens/s`);
  if (first !== undefined) out.push(`first token after ${seconds(first)}`);
  const cached = usage?.prompt_tokens_details?.cached_tokens ?? 0;
  if (usage) out.push(`prompt ${number(usage.prompt_tokens)} tokens${cached ? `, ${number(cached)} from cache` : ''}`);
  if (node.finish === 'length') out.push('cut by the token limit');
  if (node.finish === 'stopped') out.push('stopped by you');
  return out.join(' · ');
}

// What the template made of the messages before this answer.
function promptView(node, body) {
  const out = h('div', null, h('p.muted', null, 'Rendering…'));
  (async () => {
    try {
      const rendered = await request('POST', '/v1/render', body);
      const cached = node.usage?.prompt_tokens_details?.cached_tokens ?? 0;
      fill(out, h('p.muted', null, `${number(rendered.count)} tokens as the model reads them. `,
        h('span.tok.special', null, 'control tokens'), ' ', cached ? h('span.tok.cached', null, `first ${number(cached)}: from the cache`) : 'None came from the cache.'),
        renderedStrip(rendered.tokens, {label: 'Tokens of the prompt', cached}));
    } catch (error) {
      fill(out, h('p.bad', null, visible(error.message)));
    }
  })();
  return [out, curl(() => ({method: 'POST', path: '/v1/render', body}))];
}

function callText(call) {
  let args = call.arguments;
  try { args = JSON.stringify(JSON.parse(args), null, 2); } catch { /* still incomplete, or cut */ }
  return args;
}

// The element of a message. `lane` (chat/lane.js) acts on it. el.update() shows the node's present text.
export function messageView(node, lane) {
  const isAnswer = node.role === 'assistant';
  const body = isAnswer ? longMarkdown() : longText();
  const thought = longText();
  const reasoning = h('details.reasoning', {hidden: true}, h('summary', null, 'Thoughts'), thought);
  const calls = h('div');
  const foot = h('p.stats.muted');
  const fault = h('div');
  const extra = h('div.extra');
  const buttons = h('div.row.actions');
  const el = h(`li.message.${isAnswer ? 'answer' : 'prompt'}`, null,
    h(isAnswer ? 'div.who' : 'div.who.hide', null, isAnswer ? name(node.model || 'Assistant', 60) : 'You'),
    h('div.bubble', null, reasoning, body, calls, fault), foot, buttons, extra);

  let open = null;  // the name of the shown extra part
  const toggle = (what, make) => button(what, (event) => {
    for (const other of buttons.querySelectorAll('[aria-expanded=true]')) other.setAttribute('aria-expanded', 'false');
    const isOpen = open === what;
    open = isOpen ? null : what;
    event.currentTarget.setAttribute('aria-expanded', String(!isOpen));
    fill(extra, isOpen ? null : make());
  }, {class: 'plain', 'aria-expanded': 'false'});

  const edit = () => {
    const area = h('textarea', {rows: Math.min(14, node.content.split('\n').length + 2), 'aria-label': 'Text of the message', value: node.content, dir: 'auto'});
    const close = () => { form.replaceWith(body); buttons.hidden = false; buttons.querySelector('button')?.focus(); };
    const form = h('form.edit', {onsubmit: (event) => { event.preventDefault(); lane.edit(node, area.value); }}, area,
      h('div.row', null, h('button.primary', {type: 'submit'}, isAnswer ? 'Save as a branch' : 'Send as a branch'), button('Cancel', close)));
    area.addEventListener('keydown', (event) => { if (event.key === 'Escape') { event.stopPropagation(); close(); } });
    body.replaceWith(form);
    buttons.hidden = true;
    area.focus();
  };

  const branches = () => {
    const all = siblings(lane.data, node), at = all.indexOf(node);
    if (all.length < 2) return null;
    const to = (i, text, label) => button(text, () => lane.choose(all[i]), {class: 'plain', 'aria-label': label, disabled: i < 0 || i >= all.length});
    return h('span.branches', {role: 'group', 'aria-label': 'Branches'}, to(at - 1, '‹', 'Previous branch'),
      h('span', null, `${at + 1}/${all.length}`), to(at + 1, '›', 'Next branch'));
  };

  el.update = () => {
    body.set(node.content);
    thought.set(node.reasoning ?? '');
    reasoning.hidden = !node.reasoning;
    fill(calls, (node.calls ?? []).map((call) => h('div.call', null, h('div', null, 'calls ', h('strong.mono', null, name(call.name, 100))),
      h('pre', {tabindex: 0, 'aria-label': 'Arguments of the call'}, visible(callText(call).slice(0, 20_000))))));
  };
  // Shows what belongs to a complete message. `isBusy`: text still arrives.
  el.settle = (isBusy) => {
    el.update();
    el.setAttribute('aria-busy', String(isBusy));
    foot.textContent = isBusy ? '' : stats(node);
    foot.hidden = !foot.textContent;
    fill(fault, node.error && h('div.note.bad', null, visible(node.error)));
    const tokens = tokensOf.get(node);
    fill(buttons, isBusy ? null : [
      branches(),
      button('Copy', async (event) => { const b = event.currentTarget; b.textContent = await copy(node.content, body) ? 'Copied' : 'Press Ctrl+C'; }, {class: 'plain'}),
      button('Edit', edit, {class: 'plain'}),
      isAnswer && button(node.error ? 'Try again' : 'Regenerate', () => lane.regenerate(node), {class: 'plain'}),
      isAnswer && tokens && toggle('Tokens', () => logprobStrip(tokens)),
      isAnswer && toggle('Prompt', () => promptView(node, lane.renderBody(node)))]);
  };
  el.settle(false);
  return el;
}
