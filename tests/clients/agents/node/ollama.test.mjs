// Ollama's JavaScript client: chats, streams, tools, thoughts, objects, lists, pulls, aborts.

import assert from 'node:assert/strict';
import { beforeEach, describe, it } from 'node:test';

import { Ollama } from 'ollama';
import { z } from 'zod';

import { asked, expected, getWeather, key, model, person, url } from './support.mjs';

const clientWith = (secret) =>
  new Ollama({ host: url, headers: { Authorization: `Bearer ${secret}` } });
const client = clientWith(key);
const admin = clientWith(process.env.TANDEM_TEST_ADMIN_KEY);
const user = (content) => [{ role: 'user', content }];
const tool = {
  type: 'function',
  function: {
    name: 'get_weather',
    description: 'The weather in a city.',
    parameters: {
      type: 'object', required: ['city'], properties: { city: { type: 'string', description: 'Its name.' } },
    },
  },
};

beforeEach(() => { asked.length = 0; });

describe('chats', () => {
  it('an answer has text, a reason and counts', async () => {
    const answer = await client.chat({ model, messages: user('Hello') });

    assert.equal(answer.message.content, expected.plain);
    assert.equal(answer.done_reason, 'stop');
    assert.ok(answer.eval_count > 5);
  });

  it('a stream spells the answer', async () => {
    let text = '';
    let n = 0;
    for await (const part of await client.chat({ model, messages: user('Hello'), stream: true })) {
      text += part.message.content;
      n += 1;
    }

    assert.equal(text, expected.plain);
    assert.ok(n > 3);
  });

  it('a tool loop ends in text', async () => {
    const messages = user('Go #pair');
    const first = await client.chat({ model, messages, tools: [tool] });
    messages.push(first.message);
    for (const call of first.message.tool_calls) {
      messages.push({
        role: 'tool', tool_name: call.function.name, content: getWeather(call.function.arguments),
      });
    }
    const final = await client.chat({ model, messages, tools: [tool] });

    assert.deepEqual(asked, ['Paris', 'Oslo']);
    assert.equal(final.message.content, expected.both);
  });

  it('thoughts are apart from the text', async () => {
    const answer = await client.generate({ model, prompt: 'Go #thought', think: true });

    assert.equal(answer.thinking, expected.thought);
    assert.equal(answer.response, expected.sunny);
  });

  it('a schema makes an object', async () => {
    const answer = await client.chat({
      model, messages: user('Go #person'), format: z.toJSONSchema(person),
    });

    assert.deepEqual(JSON.parse(answer.message.content), expected.ada);
  });

  it('an aborted stream throws', async () => {
    const other = clientWith(key);
    const stream = await other.chat({ model, messages: user('Hello'), stream: true });
    other.abort();
    await assert.rejects(async () => {
      for await (const part of stream) assert.ok(part);
    }, { name: 'AbortError' });
  });

  it('errors have status and text', async () => {
    await assert.rejects(client.chat({ model, messages: user('Hello'), options: { mirostat: 1 } }),
      (error) => error.status_code === 400 && /mirostat/.test(error.message));
    await assert.rejects(clientWith('wrong').list(), (error) => error.status_code === 401);
  });
});

describe('models', () => {
  it('list, ps, show and version', async () => {
    assert.ok((await client.list()).models.some((entry) => entry.name === `${model}:latest`));
    assert.ok((await client.ps()).models.length > 0);
    assert.ok((await client.show({ model })).capabilities.includes('tools'));
    assert.match((await client.version()).version, /^\d+\.\d+\.\d+$/);
  });

  it('embeddings', async () => {
    const answer = await client.embed({ model, input: ['one', 'two'] });

    assert.equal(answer.embeddings.length, 2);
    assert.deepEqual((await client.embeddings({ model, prompt: 'one' })).embedding,
      answer.embeddings[0]);
  });

  it('a pull shows its progress and serves the model', async () => {
    const statuses = [];
    for await (const part of await admin.pull({ model: 'org/name', stream: true })) {
      statuses.push(part.status);
    }

    assert.equal(statuses.at(-1), 'success');
    assert.ok((await client.list()).models.some((entry) => entry.name === 'org/name:latest'));
    await admin.generate({ model: 'org/name', keep_alive: 0 });
    await assert.rejects(client.pull({ model: 'org/name' }), (error) => error.status_code === 403);
  });

  it('missing routes name the alternative', async () => {
    await assert.rejects(client.copy({ source: model, destination: 'mine' }),
      (error) => error.status_code === 501 && /aliases/.test(error.message));
    await assert.rejects(client.delete({ model }), (error) => error.status_code === 501);
  });
});
