// The `ai` package with its provider for OpenAI-compatible servers: generateText, streamText.

import assert from 'node:assert/strict';
import { describe, it } from 'node:test';

import { createOpenAICompatible } from '@ai-sdk/openai-compatible';
import { APICallError, generateText, RetryError, streamText } from 'ai';

import {
  apiKey, becomesBusy, becomesIdle, model, refusals, stubUrl, url,
} from './support.mjs';

const provider = ({ base = url, ...options } = {}) => createOpenAICompatible({
  name: 'tandem', baseURL: `${base}/v1`, apiKey, includeUsage: true, ...options,
});
const asked = { prompt: 'A story about a dog', temperature: 0, maxOutputTokens: 40, maxRetries: 0 };

describe('generateText', () => {
  it('answers with text, reason, usage and headers', async () => {
    const answer = await generateText({ ...asked, model: provider()(model), system: 'Be kind.' });

    assert.ok(answer.text.length > 40);
    assert.equal(answer.finishReason, 'length');
    assert.equal(answer.usage.outputTokens, 40);
    assert.equal(answer.usage.totalTokens, 40 + answer.usage.inputTokens);
    assert.match(answer.response.headers['x-request-id'], /^req_/);
    assert.equal(answer.response.modelId, model);
    assert.deepEqual(answer.warnings ?? [], []);
  });

  it('takes stop sequences and a seed', async () => {
    const draw = async (seed) => (await generateText(
      { ...asked, model: provider()(model), temperature: 0.9, seed, stopSequences: ['.'] })).text;

    assert.equal(await draw(4), await draw(4));
    assert.ok(!(await draw(4)).includes('.'));
  });

  it('works with the completions model', async () => {
    const { text } = await generateText({ ...asked, model: provider().completionModel(model) });

    assert.ok(text.length > 20);
  });
});

describe('streamText', () => {
  it('streams the text and the usage of generateText', async () => {
    const want = await generateText({ ...asked, model: provider()(model) });
    const stream = streamText({ ...asked, model: provider()(model) });
    const pieces = [];
    for await (const piece of stream.textStream) pieces.push(piece);

    assert.ok(pieces.length > 5);
    assert.equal(pieces.join(''), want.text);
    assert.equal(await stream.finishReason, 'length');
    assert.equal((await stream.usage).outputTokens, want.usage.outputTokens);
    assert.equal((await stream.usage).inputTokens, want.usage.inputTokens);
  });

  it('names every part in order', async () => {
    const types = [];
    for await (const part of streamText({ ...asked, model: provider()(model) }).fullStream) {
      if (part.type !== types.at(-1)) types.push(part.type);
    }

    assert.deepEqual(types, ['start', 'start-step', 'text-start', 'text-delta', 'text-end',
      'finish-step', 'finish']);
  });

  it('ends the work when it is aborted', async () => {
    const abort = new AbortController();
    const sdk = provider({ transformRequestBody: (body) => ({ ...body, n: 128, ignore_eos: true }) });
    const stream = streamText({
      ...asked, model: sdk(model), maxOutputTokens: 900, abortSignal: abort.signal,
    });
    const parts = [];
    for await (const part of stream.fullStream) {
      parts.push(part.type);
      if (part.type === 'text-delta' && !abort.signal.aborted) {
        assert.ok(await becomesBusy());
        abort.abort();
      }
    }

    assert.ok(parts.includes('abort'), parts.join(' '));
    assert.ok(await becomesIdle());
  });
});

describe('errors', () => {
  it('are API call errors with the message, retried only where that helps', async () => {
    for (const [options, name, status, text] of [
      [{ apiKey: 'wrong' }, model, 401, /key/],
      [{}, 'gpt-4o', 404, /tandem-stories/],
    ]) {
      await assert.rejects(
        generateText({ ...asked, model: provider(options)(name), maxRetries: 2 }),
        (error) => APICallError.isInstance(error) && error.statusCode === status
          && !error.isRetryable && text.test(error.message));
    }
    await assert.rejects(
      generateText({ ...asked, model: provider()(model), topP: 7, maxRetries: 2 }),
      (error) => APICallError.isInstance(error) && error.statusCode === 400
        && /top_p/.test(error.message) && error.data.error.param === 'top_p');
  });

  it('429 is tried again after the time it names', async () => {
    const { headers, arrivals } = refusals('429*1', { retryAfter: 2 });
    const sdk = provider({ base: stubUrl, headers });
    const answer = await generateText({ ...asked, model: sdk(model), maxRetries: 2 });

    assert.ok(answer.text.length > 0);
    const times = await arrivals();
    assert.equal(times.length, 2);
    assert.ok(times[1] - times[0] >= 1.99, `${times[1] - times[0]} s`);
  });

  it('503 to the end is a retry error', async () => {
    const { headers, arrivals } = refusals('503*9', { retryAfter: 1 });
    const sdk = provider({ base: stubUrl, headers });

    await assert.rejects(generateText({ ...asked, model: sdk(model), maxRetries: 1 }),
      (error) => RetryError.isInstance(error) && error.lastError.statusCode === 503);
    assert.equal((await arrivals()).length, 2);
  });
});
