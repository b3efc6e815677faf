// The AI SDK: tool loops, objects and streams, over the API that TANDEM_AGENTS_API names.

import assert from 'node:assert/strict';
import { beforeEach, describe, it } from 'node:test';

import { createAnthropic } from '@ai-sdk/anthropic';
import { createOpenAI } from '@ai-sdk/openai';
import { createOpenAICompatible } from '@ai-sdk/openai-compatible';
import {
  generateObject, generateText, Output, stepCountIs, streamObject, streamText, tool,
} from 'ai';
import { z } from 'zod';

import {
  asked, base, expected, getWeather, key, model as name, person, report,
} from './support.mjs';

const settings = { baseURL: base, apiKey: key };
const api = process.env.TANDEM_AGENTS_API;
// Anthropic's provider returns objects through a tool `json`.
const ending = api === 'messages' ? '-json' : '';
const model = {
  chat: () => createOpenAICompatible(
    { ...settings, name: 'tandem', supportsStructuredOutputs: true })(name),
  responses: () => createOpenAI(settings).responses(name),
  messages: () => createAnthropic(settings)(name),
}[api]();
const tools = {
  get_weather: tool({
    description: 'The weather in a city.', inputSchema: z.object({ city: z.string() }),
    execute: async (input) => getWeather(input),
  }),
};
const loop = { model, tools, stopWhen: stepCountIs(5), maxRetries: 0 };

beforeEach(() => { asked.length = 0; });

describe('tools', () => {
  it('generateText runs the loop to the answer', async () => {
    const { text, steps } = await generateText({ ...loop, prompt: 'Go #weather' });

    assert.equal(text, expected.sunny);
    assert.deepEqual(asked, ['Paris']);
    assert.deepEqual(steps.map((step) => step.finishReason), ['tool-calls', 'stop']);
  });

  it('streamText reports the parts of both steps', async () => {
    const stream = streamText({ ...loop, prompt: 'Go #pair' });
    const types = new Set();
    for await (const part of stream.fullStream) types.add(part.type);

    assert.equal(await stream.text, expected.both);
    assert.deepEqual([...asked].sort(), ['Oslo', 'Paris']);
    for (const type of ['tool-input-start', 'tool-input-delta', 'tool-input-end', 'tool-call',
      'tool-result', 'text-delta', 'finish']) {
      assert.ok(types.has(type), type);
    }
    assert.ok(!types.has('error'));
  });

  it('a forced tool is called', async () => {
    const { toolCalls } = await generateText(
      { model, tools, toolChoice: 'required', prompt: 'Go #weather', maxRetries: 0 });

    assert.equal(toolCalls[0].toolName, 'get_weather');
    assert.deepEqual(toolCalls[0].input, { city: 'Paris' });
  });

  it('tools come before the object of Output.object', async () => {
    const answer = await generateText(
      { ...loop, prompt: `Go #report${ending}`, output: Output.object({ schema: report }) });

    assert.deepEqual(answer.output, expected.report);
    assert.deepEqual(asked, ['Paris']);
  });
});

describe('objects', () => {
  it('generateObject returns an object of the schema', async () => {
    const { object } = await generateObject(
      { model, schema: person, prompt: `Who? #person${ending}`, maxRetries: 0 });

    assert.deepEqual(object, expected.ada);
  });

  it('streamObject yields parts of the object', async () => {
    const stream = streamObject({ model, schema: person, prompt: `Who? #person${ending}` });
    const parts = [];
    for await (const part of stream.partialObjectStream) parts.push(part);

    assert.ok(parts.length > 2);
    assert.deepEqual(await stream.object, expected.ada);
  });
});
