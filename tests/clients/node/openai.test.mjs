// The openai package: plain calls, streams, helpers, errors, retries.

import assert from 'node:assert/strict';
import { describe, it } from 'node:test';

import OpenAI, { toFile } from 'openai';
import { ChatCompletionStream } from 'openai/lib/ChatCompletionStream';

import {
  adminKey, apiKey, ask, becomesBusy, becomesIdle, busyUrl, long, longChat, messages, model, pause,
  refusals, stubUrl, tlsUrl, url, work,
} from './support.mjs';

const client = ({ base = url, ...options } = {}) =>
  new OpenAI({ baseURL: `${base}/v1`, apiKey, maxRetries: 0, timeout: 120_000, ...options });

const chat = (sdk, more = {}, options = {}) =>
  sdk.chat.completions.create({ model, messages, max_tokens: 60, ...more }, options);

async function collect(stream) {
  const chunks = [];
  for await (const chunk of stream) chunks.push(chunk);
  return chunks;
}

const textOf = (chunks, index = 0) =>
  chunks.flatMap((chunk) => chunk.choices).filter((choice) => choice.index === index)
    .map((choice) => choice.text ?? choice.delta.content ?? '').join('');

describe('files', () => {
  it('creates, lists, retrieves, reads and deletes', async () => {
    const sdk = client();
    const content = '{"messages": []}\n'.repeat(3);

    const file = await sdk.files.create({
      file: await toFile(Buffer.from(content), 'ä b.jsonl'), purpose: 'fine-tune',
    });

    assert.equal(file.filename, 'ä b.jsonl');
    assert.equal(file.bytes, content.length);
    assert.deepEqual(await sdk.files.retrieve(file.id), file);
    const ids = [];
    for await (const one of sdk.files.list({ purpose: 'fine-tune', limit: 1 })) ids.push(one.id);
    assert.ok(ids.includes(file.id));
    assert.equal(await (await sdk.files.content(file.id)).text(), content);
    assert.equal((await sdk.files.delete(file.id)).deleted, true);
    await assert.rejects(sdk.files.retrieve(file.id), (error) => error.code === 'file_not_found');
  });
});

describe('models', () => {
  it('lists every served name', async () => {
    const ids = [];
    for await (const entry of client().models.list()) ids.push(entry.id);

    assert.deepEqual(ids.sort(), ['org/tandem:stories', model]);
  });

  it('retrieves, also a name with slash and colon', async () => {
    assert.equal((await client().models.retrieve(model)).owned_by, 'local');
    assert.equal((await client().models.retrieve('org/tandem:stories')).object, 'model');
  });

  it('does not delete the base model', () => assert.rejects(client().models.delete(model),
    (error) => error instanceof OpenAI.PermissionDeniedError && error.code === 'model_protected'));
});

describe('chat', () => {
  it('answers', async () => {
    const answer = await chat(client(), { temperature: 0 });

    assert.match(answer.id, /^chatcmpl-/);
    assert.equal(answer.object, 'chat.completion');
    assert.equal(answer.choices[0].message.role, 'assistant');
    assert.ok(answer.choices[0].message.content.length > 40);
    assert.equal(answer.choices[0].finish_reason, 'length');
    assert.equal(answer.usage.completion_tokens, 60);
    assert.match(answer._request_id, /^req_/);
  });

  it('repeats a seeded text, plain and streamed', async () => {
    const sdk = client();
    const drawn = async (seed) =>
      (await chat(sdk, { temperature: 0.9, seed })).choices[0].message.content;
    const want = await drawn(11);

    assert.equal(await drawn(11), want);
    assert.notEqual(await drawn(12), want);
    assert.equal(
      textOf(await collect(await chat(sdk, { temperature: 0.9, seed: 11, stream: true }))), want);
  });

  it('streams the choices of n as it answers them', async () => {
    const sdk = client();
    const asked = { n: 3, seed: 5, temperature: 1 };
    const plain = await chat(sdk, asked);
    const chunks = await collect(await chat(sdk, { ...asked, stream: true }));

    assert.deepEqual([0, 1, 2].map((index) => textOf(chunks, index)),
      plain.choices.map((choice) => choice.message.content));
  });

  it('cuts before a stop string', async () => {
    const sdk = client();
    const whole = (await chat(sdk, { temperature: 0 })).choices[0].message.content;
    const stop = whole.split(' ')[7];
    const want = whole.slice(0, whole.indexOf(stop));
    const cut = await chat(sdk, { temperature: 0, stop: [stop] });

    assert.equal(cut.choices[0].finish_reason, 'stop');
    assert.equal(cut.choices[0].message.content, want);
    assert.equal(textOf(await collect(await chat(sdk, { temperature: 0, stop, stream: true }))),
      want);
  });

  it('gives logprobs that spell the text, streamed too', async () => {
    const sdk = client();
    const asked = { temperature: 0, logprobs: true, top_logprobs: 2 };
    const plain = (await chat(sdk, asked)).choices[0];
    const chunks = await collect(await chat(sdk, { ...asked, stream: true }));
    const streamed = chunks.flatMap((chunk) => chunk.choices[0].logprobs?.content ?? []);

    assert.equal(Buffer.from(plain.logprobs.content.flatMap((entry) => entry.bytes)).toString(),
      plain.message.content);
    assert.deepEqual(streamed, plain.logprobs.content);
  });

  it('reports usage in a stream that asks for it', async () => {
    const chunks = await collect(
      await chat(client(), { stream: true, stream_options: { include_usage: true } }));
    const last = chunks.at(-1);

    assert.deepEqual(last.choices, []);
    assert.equal(last.usage.completion_tokens, 60);
    assert.ok(chunks.slice(0, -1).every((chunk) => chunk.usage === null));
  });
});

describe('stream helper', () => {
  const asked = { model, messages, temperature: 0, stop: '.', logprobs: true };

  it('emits events and ends with the plain answer', async () => {
    const sdk = client();
    const plain = await sdk.chat.completions.create(asked);
    const seen = { connect: 0, chunk: 0, delta: '', end: 0 };
    const stream = sdk.chat.completions.stream({ ...asked, stream_options: { include_usage: true } })
      .on('connect', () => { seen.connect += 1; })
      .on('chunk', () => { seen.chunk += 1; })
      .on('content.delta', ({ delta, snapshot }) => {
        seen.delta += delta;
        assert.equal(seen.delta, snapshot);
      })
      .on('content.done', ({ content }) => { seen.done = content; })
      .on('logprobs.content.done', ({ content }) => { seen.logprobs = content; })
      .on('finalChatCompletion', (completion) => { seen.final = completion; })
      .on('end', () => { seen.end += 1; });
    const message = await stream.finalMessage();
    const completion = await stream.finalChatCompletion();
    const want = plain.choices[0].message.content;

    assert.equal(message.content, want);
    assert.equal(message.role, 'assistant');
    assert.equal(await stream.finalContent(), want);
    assert.equal(completion.choices[0].finish_reason, 'stop');
    assert.equal((await stream.totalUsage()).completion_tokens, plain.usage.completion_tokens);
    assert.equal(completion.usage.completion_tokens, plain.usage.completion_tokens);
    assert.deepEqual(seen.logprobs, plain.choices[0].logprobs.content);
    assert.deepEqual([seen.connect, seen.end, seen.delta, seen.done], [1, 1, want, want]);
    assert.deepEqual(seen.final, completion);
    assert.ok(seen.chunk > 5);
  });

  it('goes through a readable stream to another client', async () => {
    const want = (await client().chat.completions.create(asked)).choices[0].message.content;
    const stream = client().chat.completions.stream(asked);
    const copy = ChatCompletionStream.fromReadableStream(stream.toReadableStream());

    assert.equal((await copy.finalMessage()).content, want);
  });

  it('splits a stream in two', async () => {
    const [left, right] = (await chat(client(), { temperature: 0, stream: true })).tee();
    const [a, b] = await Promise.all([collect(left), collect(right)]);

    assert.ok(textOf(a).length > 40);
    assert.equal(textOf(a), textOf(b));
  });

  it('turns a refusal into an error event', async () => {
    const stream = client().chat.completions.stream({ ...asked, temperature: 3 });

    await assert.rejects(stream.finalMessage(), (error) =>
      error instanceof OpenAI.BadRequestError && error.param === 'temperature');
  });
});

describe('completions', () => {
  it('answers the same plain and streamed', async () => {
    const sdk = client();
    const asked = { model, prompt: 'Once upon a time', max_tokens: 30, seed: 3, temperature: 0.8 };
    const plain = await sdk.completions.create(asked);
    const chunks = await collect(await sdk.completions.create(
      { ...asked, stream: true, stream_options: { include_usage: true } }));

    assert.match(plain.id, /^cmpl-/);
    assert.ok(plain.choices[0].text.length > 20);
    assert.equal(textOf(chunks), plain.choices[0].text);
    assert.equal(chunks.at(-1).usage.completion_tokens, plain.usage.completion_tokens);
  });

  it('takes several prompts, n, echo and logprobs', async () => {
    const answer = await client().completions.create(
      { model, prompt: ['A cat', 'A dog'], n: 2, max_tokens: 5, echo: true, logprobs: 2 });

    assert.deepEqual(answer.choices.map((choice) => choice.text.slice(0, 5)),
      ['A cat', 'A cat', 'A dog', 'A dog']);
    assert.equal(answer.choices[3].logprobs.tokens.length,
      answer.choices[3].logprobs.token_logprobs.length);
  });
});

describe('a stream that waits', () => {
  it('shows only its text, not the pings', async () => {
    let running;
    let pings = 0;
    const watched = () => new TransformStream({
      transform(piece, controller) {
        if (running && Buffer.from(piece).includes(': ping')) {
          pings += 1;
          running.controller.abort();
        }
        controller.enqueue(piece);
      },
    });
    const sdk = client({
      maxRetries: 8,
      base: busyUrl,
      fetch: async (...request) => {
        const answer = await fetch(...request);
        return new Response(answer.body.pipeThrough(watched()), answer);
      },
    });
    const asked = { model, prompt: 'A dog', max_tokens: 8, temperature: 0 };
    const want = (await sdk.completions.create(asked)).choices[0].text;
    const first = await client({ base: busyUrl }).completions.create({ ...long, stream: true });
    await first[Symbol.asyncIterator]().next();
    running = first;

    assert.equal(textOf(await collect(await sdk.completions.create({ ...asked, stream: true }))),
      want);
    assert.ok(pings > 0);
  });
});

describe('leaving', () => {
  it('by breaking out of a stream ends the work', async () => {
    const sdk = client();
    for await (const chunk of await sdk.completions.create({ ...long, stream: true })) {
      assert.ok(chunk.id);
      assert.ok((await work()) > 0);
      break;
    }

    assert.ok(await becomesIdle());
    assert.equal((await chat(sdk, { max_tokens: 1 })).usage.completion_tokens, 1);
  });

  it('by aborting the controller of a stream ends the work', async () => {
    const stream = await client().chat.completions.create({ ...longChat, stream: true });
    await stream[Symbol.asyncIterator]().next();
    assert.ok((await work()) > 0);
    stream.controller.abort();

    assert.ok(await becomesIdle());
  });

  it('by aborting the helper ends the work', async () => {
    const stream = client().chat.completions.stream(longChat);
    stream.once('chunk', () => stream.abort());

    await assert.rejects(stream.done(), OpenAI.APIUserAbortError);
    assert.ok(stream.aborted);
    assert.ok(await becomesIdle());
  });

  it('by aborting a plain call ends the work', async () => {
    const abort = new AbortController();
    const call = client().completions.create(long, { signal: abort.signal });
    const rejected = assert.rejects(call, OpenAI.APIUserAbortError);
    assert.ok(await becomesBusy());
    abort.abort();

    await rejected;
    assert.ok(await becomesIdle());
  });

  it('by timing out ends the work of every try', async () => {
    let tries = 0;
    const sdk = client({
      timeout: 500, maxRetries: 1,
      fetch: (...request) => { tries += 1; return fetch(...request); },
    });

    await assert.rejects(sdk.completions.create(long), OpenAI.APIConnectionTimeoutError);
    assert.equal(tries, 2);
    assert.ok(await becomesIdle());
  });
});

describe('errors', () => {
  async function fails(kind, { status, code, param }, call) {
    const error = await call().then(() => assert.fail('no error'), (caught) => caught);
    assert.equal(error.constructor, kind, String(error));
    assert.deepEqual({ status: error.status, code: error.code, param: error.param },
      { status, code, param });
    assert.match(error.requestID, /^req_/);
    assert.deepEqual(Object.keys(error.error).sort(), ['code', 'message', 'param', 'type']);
    return error;
  }

  it('wrong key', async () => {
    const error = await fails(OpenAI.AuthenticationError,
      { status: 401, code: 'invalid_api_key', param: null }, () => chat(client({ apiKey: 'wrong' })));

    assert.equal(error.headers.get('www-authenticate'), 'Bearer');
  });

  it('an ordinary key on an admin route', () => fails(OpenAI.PermissionDeniedError,
    { status: 403, code: 'insufficient_permissions', param: null },
    () => client({ baseURL: url }).get('/admin/models')));

  it('the admin key where an ordinary one would do', async () => {
    assert.equal((await client({ apiKey: adminKey }).models.retrieve(model)).id, model);
  });

  it('unknown model and route', async () => {
    await fails(OpenAI.NotFoundError, { status: 404, code: 'model_not_found', param: 'model' },
      () => chat(client(), { model: 'gpt-4o' }));
    await fails(OpenAI.NotFoundError, { status: 404, code: 'model_not_found', param: 'model' },
      () => client().models.retrieve('gpt-4o'));
    await fails(OpenAI.NotFoundError, { status: 404, code: 'unknown_url', param: null },
      () => client().get('/no/such/route'));
  });

  it('faults of a field, before a stream begins too', async () => {
    for (const stream of [false, true]) {
      await fails(OpenAI.BadRequestError,
        { status: 400, code: 'invalid_value', param: 'temperature' },
        () => chat(client(), { temperature: 3, stream }));
      await fails(OpenAI.BadRequestError, { status: 400, code: 'invalid_type', param: 'max_tokens' },
        () => chat(client(), { max_tokens: '7', stream }));
      await fails(OpenAI.BadRequestError,
        { status: 400, code: 'unsupported_parameter', param: 'functions' },
        () => chat(client(), { functions: [{ name: 'f' }], stream }));
      await fails(OpenAI.BadRequestError,
        { status: 400, code: 'missing_required_parameter', param: 'messages' },
        () => chat(client(), { messages: undefined, stream }));
    }
  });

  it('a prompt beyond the context', async () => {
    const content = 'dog '.repeat(2000);
    await fails(OpenAI.BadRequestError,
      { status: 400, code: 'context_length_exceeded', param: 'prompt' },
      () => client().completions.create({ model, prompt: content }));
    await fails(OpenAI.BadRequestError,
      { status: 400, code: 'context_length_exceeded', param: 'messages' },
      () => chat(client({ base: busyUrl }), { messages: [{ role: 'user', content }] }));
  });

  // Node reads no reply before it has sent everything. It sees this one only if the server keeps
  // reading the refused body, but the server stops after the first MiB. Five tries rule out luck.
  it('a body beyond the limit', { todo: 'the server closes before Node has sent it all' }, async () => {
    for (let i = 0; i < 5; i += 1) {
      await fails(OpenAI.APIError, { status: 413, code: 'request_too_large', param: null },
        () => client().completions.create({ model, prompt: 'x'.repeat(40 << 20) }));
    }
  });
});

describe('a browser', () => {
  async function sentHeaders() {
    const names = new Set();
    const sdk = client({
      organization: 'o', project: 'p', maxRetries: 1, dangerouslyAllowBrowser: true,
      fetch: (target, options) => {
        for (const [name] of new Headers(options.headers)) names.add(name);
        return fetch(target, options);
      },
    });
    await chat(sdk, { max_tokens: 1 });
    await sdk.chat.completions.stream({ model, messages, max_tokens: 1 }).done();
    return [...names];
  }

  async function allowedHeaders(asked) {
    const answer = await fetch(`${url}/v1/chat/completions`, {
      method: 'OPTIONS',
      headers: {
        origin: 'https://app.example', 'access-control-request-method': 'POST',
        'access-control-request-headers': asked.join(','),
      },
    });
    assert.equal(answer.headers.get('access-control-allow-origin'), '*');
    return answer.headers.get('access-control-allow-headers').split(/, */);
  }

  it('may send what the library sends', async () => {
    const sent = (await sentHeaders()).filter((name) => !['accept', 'user-agent'].includes(name));
    const allowed = await allowedHeaders(sent);

    assert.ok(sent.includes('x-stainless-helper-method'));
    assert.deepEqual(sent.filter((name) => !allowed.includes(name)), []);
  });

  it('may name itself', { todo: 'user-agent is not among the allowed headers' }, async () => {
    assert.ok((await allowedHeaders(['user-agent'])).includes('user-agent'));
  });
});

describe('headers', () => {
  it('come with withResponse and asResponse', async () => {
    const { data, response, request_id: id } =
      await chat(client(), { max_tokens: 2, colour: 'red' }).withResponse();

    assert.equal(response.status, 200);
    assert.equal(response.headers.get('x-request-id'), id);
    assert.equal(response.headers.get('x-ignored-params'), 'colour');
    assert.match(response.headers.get('openai-processing-ms'), /^\d+$/);
    assert.equal(data._request_id, id);
    const raw = await chat(client(), { max_tokens: 2, stream: true }).asResponse();
    assert.equal(raw.headers.get('content-type'), 'text/event-stream; charset=utf-8');
    assert.match(await raw.text(), /data: \[DONE\]\n\n$/);
  });

  it('repeat a request id of the client', async () => {
    const answer = await chat(client(), { max_tokens: 1 },
      { headers: { 'X-Request-Id': 'mine-1.2_3' } });

    assert.equal(answer._request_id, 'mine-1.2_3');
  });
});

describe('retries', () => {
  const stubbed = (fail, options, more = {}) => {
    const { headers, arrivals } = refusals(fail, options);
    return { sdk: client({ base: stubUrl, defaultHeaders: headers, ...more }), arrivals };
  };

  for (const [status, kind] of [[429, OpenAI.RateLimitError], [503, OpenAI.InternalServerError]]) {
    it(`${status} is tried again after the time it names`, async () => {
      const { sdk, arrivals } = stubbed(`${status}*1`, { retryAfter: 2 }, { maxRetries: 2 });

      assert.equal((await chat(sdk, { max_tokens: 3 })).usage.completion_tokens, 3);
      const times = await arrivals();
      assert.equal(times.length, 2);
      assert.ok(times[1] - times[0] >= 1.99, `${times[1] - times[0]} s`);
    });

    it(`${status} without retries is an error of its class`, async () => {
      const { sdk, arrivals } = stubbed(`${status}*9`, { retryAfter: 1 });

      await assert.rejects(chat(sdk), (error) => error instanceof kind && error.status === status
        && error.headers.get('retry-after') === '1');
      assert.equal((await arrivals()).length, 1);
    });
  }

  it('a conflict is not tried again when the server says so', async () => {
    const { sdk, arrivals } = stubbed('409*9', { shouldRetry: 'false' }, { maxRetries: 2 });

    await assert.rejects(chat(sdk), OpenAI.ConflictError);
    assert.equal((await arrivals()).length, 1);
  });

  it('a full server is asked again and then answers', async () => {
    let refused = 0;
    const sdk = client({
      base: busyUrl, maxRetries: 8,
      fetch: async (...request) => {
        const answer = await fetch(...request);
        if (answer.status === 503) refused += 1;
        return answer;
      },
    });
    const running = await client({ base: busyUrl }).completions.create({ ...long, stream: true });
    await running[Symbol.asyncIterator]().next();
    // One runs and one may wait, so one of two is refused.
    const calls = [chat(sdk, { max_tokens: 2 }), chat(sdk, { max_tokens: 2 })];
    while (refused === 0) await pause(10);
    running.controller.abort();

    for (const answer of await Promise.all(calls)) assert.equal(answer.usage.completion_tokens, 2);
  });
});

describe('tls', () => {
  it('answers and streams', async () => {
    const sdk = client({ base: tlsUrl });
    const want = (await chat(sdk, { temperature: 0 })).choices[0].message.content;

    assert.equal(textOf(await collect(await chat(sdk, { temperature: 0, stream: true }))), want);
  });
});

describe('a request that takes too long', () => {
  it('is an error, also in the middle of a stream', async () => {
    const sdk = client({ base: tlsUrl });
    await assert.rejects(sdk.completions.create(long), (error) =>
      error instanceof OpenAI.InternalServerError && error.status === 503
        && Number(error.headers.get('retry-after')) >= 1);
    await assert.rejects(
      async () => collect(await sdk.completions.create({ ...long, stream: true })),
      (error) => error instanceof OpenAI.APIError && /request/.test(error.message));
  });
});

describe('many at once', () => {
  it('fifty streams have the text of one alone', async () => {
    const sdk = client();
    const text = async (seed) => textOf(await collect(
      await chat(sdk, { temperature: 0.9, seed, stream: true })));
    const want = [];
    for (let seed = 0; seed < 5; seed += 1) want.push(await text(seed));
    const streams = Array.from({ length: 50 }, (_, i) => text(i % 5));

    assert.deepEqual(await Promise.all(streams), Array.from({ length: 50 }, (_, i) => want[i % 5]));
    assert.equal(new Set(want).size, 5);
  });

  it('health answers while everything is busy', async () => {
    const stream = await client().chat.completions.create({ ...longChat, stream: true });
    await stream[Symbol.asyncIterator]().next();

    assert.deepEqual(await ask('/health'), { status: 200, body: { status: 'ok' } });
    stream.controller.abort();
    assert.ok(await becomesIdle());
  });
});
