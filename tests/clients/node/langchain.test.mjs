// @langchain/openai: chat and plain models, invoke, stream, batch, and their errors.

import assert from 'node:assert/strict';
import { describe, it } from 'node:test';

import { AIMessage, HumanMessage, SystemMessage } from '@langchain/core/messages';
import { StringOutputParser } from '@langchain/core/output_parsers';
import { ChatPromptTemplate } from '@langchain/core/prompts';
import { ChatOpenAI, OpenAI } from '@langchain/openai';

import { apiKey, becomesIdle, busyUrl, model, url, work } from './support.mjs';

const chat = ({ base = url, ...options } = {}) => new ChatOpenAI({
  model, apiKey, temperature: 0, maxTokens: 40, maxRetries: 0,
  configuration: { baseURL: `${base}/v1` }, ...options,
});
const story = 'A story about a dog';

describe('chat', () => {
  it('invokes', async () => {
    const answer = await chat().invoke([new SystemMessage('Be brief.'), new HumanMessage(story)]);

    assert.ok(answer instanceof AIMessage);
    assert.ok(answer.content.length > 40);
    assert.equal(answer.response_metadata.finish_reason, 'length');
    assert.equal(answer.usage_metadata.output_tokens, 40);
  });

  it('streams the text and the usage of invoke', async () => {
    const sdk = chat({ streamUsage: true });
    const want = await sdk.invoke(story);
    let whole;
    let n = 0;
    for await (const chunk of await sdk.stream(story)) {
      whole = whole ? whole.concat(chunk) : chunk;
      n += 1;
    }

    assert.ok(n > 5);
    assert.equal(whole.content, want.content);
    assert.deepEqual(
      { input: whole.usage_metadata.input_tokens, output: whole.usage_metadata.output_tokens },
      { input: want.usage_metadata.input_tokens, output: want.usage_metadata.output_tokens });
  });

  it('batches', async () => {
    const sdk = chat();
    const stories = ['dog', 'cat', 'bird', 'tree'].map((word) => `A story about a ${word}`);
    const alone = [];
    for (const one of stories) alone.push((await sdk.invoke(one)).content);

    assert.deepEqual((await sdk.batch(stories)).map((answer) => answer.content), alone);
  });

  it('chains, with stop', async () => {
    const chain = ChatPromptTemplate.fromMessages(
      [['system', 'Be kind.'], ['user', 'A story about a {animal}']])
      .pipe(chat({ stop: ['.'] })).pipe(new StringOutputParser());
    const text = await chain.invoke({ animal: 'dog' });
    let streamed = '';
    for await (const piece of await chain.stream({ animal: 'dog' })) streamed += piece;

    assert.ok(text.length > 10 && !text.includes('.'));
    assert.equal(streamed, text);
  });

  it('leaves a stream, and the work ends', async () => {
    const sdk = chat({ maxTokens: 900, n: 128, modelKwargs: { ignore_eos: true } });
    const abort = new AbortController();
    await assert.rejects(async () => {
      for await (const chunk of await sdk.stream(story, { signal: abort.signal })) {
        assert.ok(chunk);
        assert.ok((await work()) > 0);
        abort.abort();
      }
    });

    assert.ok(await becomesIdle());
  });
});

describe('plain', () => {
  it('invokes, streams and batches', async () => {
    const sdk = new OpenAI({
      model, apiKey, temperature: 0, maxTokens: 30, maxRetries: 0,
      configuration: { baseURL: `${url}/v1` },
    });
    const want = await sdk.invoke('Once upon a time');
    let streamed = '';
    for await (const piece of await sdk.stream('Once upon a time')) streamed += piece;

    assert.ok(want.length > 20);
    assert.equal(streamed, want);
    assert.deepEqual(await sdk.batch(['Once upon a time', 'Once upon a time']), [want, want]);
  });
});

describe('errors', () => {
  it('keep status and code', async () => {
    for (const [options, status, code] of [
      [{ apiKey: 'wrong' }, 401, 'invalid_api_key'], [{ model: 'gpt-4o' }, 404, 'model_not_found'],
      [{ topP: 7 }, 400, 'invalid_value'],
    ]) {
      await assert.rejects(chat(options).invoke(story),
        (error) => error.status === status && error.code === code);
    }
    await assert.rejects(chat({ base: busyUrl }).invoke('dog '.repeat(2000)),
      (error) => error.status === 400 && error.code === 'context_length_exceeded');
  });
});
