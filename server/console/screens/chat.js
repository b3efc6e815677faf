// Chat: a conversation with a model. This first form answers one prompt.
import {h, fill, button} from '../lib/dom.js';
import {stream} from '../lib/api.js';
import {curl} from '../lib/curl.js';
import {longText} from '../lib/text.js';

let stop;

export async function mount(root, app) {
  const models = h('select', {'aria-label': 'Model'});
  const prompt = h('textarea', {rows: 3, 'aria-label': 'Message'});
  const out = longText();
  const body = () => ({model: models.value, stream: true, messages: [{role: 'user', content: prompt.value}]});
  const send = app.try(async () => {
    let text = '';
    stop = new AbortController();
    await stream('/v1/chat/completions', body(), (event) => {
      text += event.choices?.[0]?.delta.content ?? '';
      out.set(text);
    }, stop.signal);
  });
  fill(root, h('h1', null, 'Chat'), models, prompt, button('Send', send, {class: 'primary'}),
    curl(() => ({method: 'POST', path: '/v1/chat/completions', body: body()})), out);
  await app.try(async () => fill(models, (await app.models()).map((m) => h('option', {value: m.id}, m.id))))();
}

export function unmount() { stop?.abort(); }
