// The OpenAI SDK: tool loops, helpers of streams, parsed objects. Everything without tools is in
// tests/clients/node/openai.test.mjs.

import assert from 'node:assert/strict';
import { beforeEach, describe, it } from 'node:test';

import OpenAI from 'openai';
import { zodFunction, zodResponseFormat } from 'openai/helpers/zod';
import { z } from 'zod';

import {
  asked, base, expected, getWeather, key, model, person, report,
} from './support.mjs';

const client = new OpenAI({ baseURL: base, apiKey: key, maxRetries: 0 });
const user = (content) => [{ role: 'user', content }];
const cityTool = {
  type: 'function',
  function: {
    name: 'get_weather',
    function: getWeather,
    parse: JSON.parse,
    parameters: {
      type: 'object', properties: { city: { type: 'string' } }, required: ['city'],
      additionalProperties: false,
    },
  },
};

beforeEach(() => { asked.length = 0; });

describe('tools', () => {
  it('runTools calls the function and returns the answer', async () => {
    const runner = client.chat.completions.runTools(
      { model, messages: user('#weather'), tools: [cityTool] });

    assert.equal(await runner.finalContent(), expected.sunny);
    assert.deepEqual(asked, ['Paris']);
  });

  it('a streamed runTools runs both calls and emits the text', async () => {
    const runner = client.chat.completions.runTools(
      { model, messages: user('#pair'), tools: [cityTool], stream: true });
    let text = '';
    runner.on('content', (delta) => { text += delta; });

    assert.equal(await runner.finalContent(), expected.both);
    assert.ok(text.endsWith(expected.both));
    assert.deepEqual(asked, ['Paris', 'Oslo']);
  });

  it('parse returns the arguments of a forced tool', async () => {
    const answer = await client.chat.completions.parse({
      model, messages: user('#person-call'), tool_choice: 'required',
      tools: [zodFunction({ name: 'Person', parameters: person })],
    });

    assert.deepEqual(answer.choices[0].message.tool_calls[0].function.parsed_arguments,
      expected.ada);
  });
});

describe('objects', () => {
  it('parse returns an object of the schema', async () => {
    const answer = await client.chat.completions.parse({
      model, messages: user('#person'), response_format: zodResponseFormat(person, 'person'),
    });

    assert.deepEqual(answer.choices[0].message.parsed, expected.ada);
  });

  it('a stream parses its content', async () => {
    const stream = client.chat.completions.stream({
      model, messages: user('#person'), response_format: zodResponseFormat(person, 'person'),
    });
    let deltas = 0;
    stream.on('content.delta', () => { deltas += 1; });

    assert.deepEqual((await stream.finalChatCompletion()).choices[0].message.parsed, expected.ada);
    assert.ok(deltas > 3);
  });

  it('tools come before the object', async () => {
    const ask = {
      model, response_format: zodResponseFormat(report, 'report'),
      tools: [zodFunction({ name: 'get_weather', parameters: z.object({ city: z.string() }) })],
    };
    const messages = user('#report');
    const { message } = (await client.chat.completions.parse({ ...ask, messages })).choices[0];
    const [call] = message.tool_calls;
    const result = { role: 'tool', tool_call_id: call.id, content: 'sunny' };
    const last = await client.chat.completions.parse(
      { ...ask, messages: [...messages, message, result] });

    assert.deepEqual(call.function.parsed_arguments, { city: 'Paris' });
    assert.deepEqual(last.choices[0].message.parsed, expected.report);
  });
});
