// The panel beside the chat: system prompt, sampling, form of the answer.

import {h, field, button} from '../lib/dom.js';

// Fields of a request: name, label, attributes of the input, hint.
const NUMBERS = [
  ['temperature', 'Temperature', {min: 0, max: 2, step: 0.1}, '0: always the likeliest token'],
  ['top_p', 'Top p', {min: 0, max: 1, step: 0.05}, 'Smallest set of tokens with this probability'],
  ['top_k', 'Top k', {min: 0, step: 1}, 'Only the k likeliest tokens'],
  ['min_p', 'Min p', {min: 0, max: 1, step: 0.01}, 'Relative to the likeliest token'],
  ['max_tokens', 'Max tokens', {min: 1, step: 1}, 'Length of the answer'],
  ['seed', 'Seed', {step: 1}, 'Same seed, same answer'],
];

// The value of a JSON field: [value, fault].
function parse(text, isFit, what) {
  if (!text.trim()) return [undefined, ''];
  try {
    const value = JSON.parse(text);
    return isFit(value) ? [value, ''] : [undefined, `This must be ${what}.`];
  } catch (fault) {
    return [undefined, `Not JSON yet: ${fault.message}`];
  }
}

// Builds the panel for `chat`; writes into chat.system and chat.params and calls onChange.
export function settings(chat, onChange) {
  const params = chat.params;
  const set = (name, value) => {
    if (value === undefined || value === '' || Number.isNaN(value)) delete params[name]; else params[name] = value;
    onChange();
  };
  const numbers = NUMBERS.map(([name, label, attributes, hint]) => {
    const input = h('input', {type: 'number', inputmode: 'decimal', placeholder: 'model’s own', value: params[name] ?? '', ...attributes});
    input.addEventListener('input', () => set(name, input.validity.valid ? input.valueAsNumber : undefined));
    return field(label, input, hint);
  });
  const system = h('textarea', {rows: 4, value: chat.system, dir: 'auto', oninput: () => { chat.system = system.value; onChange(); }});
  const stop = h('textarea', {rows: 2, value: (params.stop ?? []).join('\n'), oninput: () => {
    const words = stop.value.split('\n').filter(Boolean);
    set('stop', words.length ? words : undefined);
  }});
  // A text area with JSON; a fault is shown below it and not sent.
  const json = (label, hint, value, isFit, what, store) => {
    const fault = h('small.bad', {role: 'status'});
    const area = h('textarea.mono', {rows: 4, spellcheck: 'false', value: value === undefined ? '' : JSON.stringify(value, null, 1)});
    area.addEventListener('input', () => {
      const [parsed, why] = parse(area.value, isFit, what);
      fault.textContent = why;
      area.setAttribute('aria-invalid', String(Boolean(why)));
      store(parsed);
    });
    const el = field(label, area, hint);
    el.append(fault);
    return el;
  };
  const logprobs = h('input', {type: 'checkbox', checked: params.logprobs ?? true, onchange: () => set('logprobs', logprobs.checked ? undefined : false)});
  return [
    field('System prompt', system, 'Goes before all messages.'),
    h('div.pair', null, numbers),
    field('Stop sequences', stop, 'One per line.'),
    json('Response schema', 'A JSON Schema; the answer then fits it.', params.response_format?.json_schema?.schema,
      (v) => v && typeof v === 'object' && !Array.isArray(v), 'an object',
      (schema) => set('response_format', schema && {type: 'json_schema', json_schema: {name: 'answer', schema}})),
    json('Tools', 'A list of functions, as in OpenAI’s API. Calls are shown, not run.', params.tools, Array.isArray, 'a list', (tools) => set('tools', tools)),
    h('label.check', null, logprobs, 'Ask for token probabilities'),
    h('p', null, button('Reset all', () => {
      chat.system = '';
      for (const name of Object.keys(params)) delete params[name];
      onChange(true);
    })),
  ];
}
