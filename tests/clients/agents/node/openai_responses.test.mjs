// The OpenAI SDK over /v1/responses: tool loops, streams, parsed objects, stored responses.

import assert from 'node:assert/strict';
import { beforeEach, describe, it } from 'node:test';

import OpenAI from 'openai';
import { zodTextFormat } from 'openai/helpers/zod';

import {
  asked, base, expected, getWeather, key, model, person,
} from './support.mjs';

const client = new OpenAI({ baseURL: base, apiKey: key, maxRetries: 0 });
const tools = [{
  type: 'function', name: 'get_weather', strict: true,
  parameters: {
    type: 'object', properties: { city: { type: 'string' } }, required: ['city'],
    additionalProperties: false,
  },
}];

beforeEach(() => { asked.length = 0; });

describe('responses', () => {
  it('a tool loop through previous_response_id', async () => {
    const first = await client.responses.create({ model, input: 'Go #weather', tools });
    const call = first.output.find((item) => item.type === 'function_call');
    const last = await client.responses.create({
      model, tools, previous_response_id: first.id,
      input: [{
        type: 'function_call_output', call_id: call.call_id,
        output: getWeather(JSON.parse(call.arguments)),
      }],
    });

    assert.equal(last.output_text, expected.sunny);
    assert.deepEqual(asked, ['Paris']);
  });

  it('a stream ends in the response of its events', async () => {
    const stream = client.responses.stream({ model, input: 'Hello' });
    let text = '';
    stream.on('response.output_text.delta', (event) => { text += event.delta; });
    const final = await stream.finalResponse();

    assert.equal(text, expected.plain);
    assert.equal(final.output_text, text);
  });

  it('parse returns an object of the schema', async () => {
    const answer = await client.responses.parse(
      { model, input: 'Who? #person', text: { format: zodTextFormat(person, 'person') } });

    assert.deepEqual(answer.output_parsed, expected.ada);
  });
});
