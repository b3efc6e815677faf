// Files and fine-tuning as in OpenAI's guide, with only `baseURL` changed.

import assert from 'node:assert/strict';
import { Blob } from 'node:buffer';
import { randomUUID } from 'node:crypto';
import { createReadStream } from 'node:fs';
import { mkdtemp, rm, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { Readable } from 'node:stream';
import { after, describe, it } from 'node:test';

import OpenAI, { toFile } from 'openai';

import { apiKey, model, pause, tuningUrl } from './support.mjs';

const animals = ['dog', 'cat', 'bird', 'frog', 'fox', 'hen', 'cow', 'pig', 'ant', 'bee', 'owl', 'bat'];
const ended = ['succeeded', 'failed', 'cancelled'];
// Jobs run in the idle class, so they are slow on a busy machine.
const patienceMs = 200_000;

const client = (options = {}) =>
  new OpenAI({ baseURL: `${tuningUrl}/v1`, apiKey, maxRetries: 0, timeout: 120_000, ...options });

const lines = (rows) => rows.map((row) => `${JSON.stringify(row)}\n`).join('');
const question = (animal) => ({ role: 'user', content: `Tell me a story about a ${animal}.` });
const says = (content) => ({ role: 'assistant', content });
const chats = lines(animals.map((animal) => ({
  messages: [question(animal), says(`Once there was a ${animal}.`)],
})));
const pairs = lines(animals.map((animal) => ({
  input: { messages: [question(animal)] },
  preferred_output: [says(`The ${animal} was happy.`)],
  non_preferred_output: [says(`The ${animal} was sad.`)],
})));
const supervised = (hyperparameters) => ({ type: 'supervised', supervised: { hyperparameters } });

async function collect(iterable) {
  const all = [];
  for await (const one of iterable) all.push(one);
  return all;
}

const idsOf = async (pages) => (await collect(pages)).map((one) => one.id);
const upload = async (sdk, content = chats, name = 'chats.jsonl') =>
  sdk.files.create({ file: await toFile(Buffer.from(content), name), purpose: 'fine-tune' });

describe('files', () => {
  it('are created from streams, blobs, buffers, answers and files', async () => {
    const sdk = client();
    const folder = await mkdtemp(join(tmpdir(), 'files-'));
    const path = join(folder, 'chats.jsonl');
    await writeFile(path, chats);
    const first = await sdk.files.create({ file: createReadStream(path), purpose: 'fine-tune' });
    const answer = await fetch(`${tuningUrl}/v1/files/${first.id}/content`,
      { headers: { authorization: `Bearer ${apiKey}` } });
    const given = [
      [await toFile(createReadStream(path)), 'chats.jsonl'],
      [await toFile(new Blob([chats]), 'blob.jsonl'), 'blob.jsonl'],
      [await toFile(Buffer.from(chats), 'buffer.jsonl', { type: 'application/jsonl' }),
        'buffer.jsonl'],
      [await toFile(Readable.from([Buffer.from(chats)]), 'pieces.jsonl'), 'pieces.jsonl'],
      [await toFile(answer, 'answer.jsonl'), 'answer.jsonl'],
    ];
    const stored = [[first, 'chats.jsonl']];
    for (const [file, name] of given) {
      stored.push([await sdk.files.create({ file, purpose: 'fine-tune' }), name]);
    }

    for (const [file, name] of stored) {
      assert.equal(file.filename, name);
      assert.equal(file.bytes, chats.length);
      assert.equal(await (await sdk.files.content(file.id)).text(), chats);
      assert.deepEqual(await sdk.files.delete(file.id), { id: file.id, object: 'file', deleted: true });
    }
    await rm(folder, { recursive: true });
  });

  it('are processed when one waits for it', async () => {
    const sdk = client();
    const file = await sdk.files.create({
      file: await toFile(Buffer.from(chats), 'x.jsonl'), purpose: 'fine-tune',
      expires_after: { anchor: 'created_at', seconds: 3600 },
    });

    assert.deepEqual(await sdk.files.waitForProcessing(file.id, { maxWait: 5000 }), file);
    assert.deepEqual(await sdk.files.retrieve(file.id), file);
    assert.equal(file.expires_at, file.created_at + 3600);
    await sdk.files.delete(file.id);
    for (const call of [() => sdk.files.retrieve(file.id), () => sdk.files.content(file.id),
      () => sdk.files.delete(file.id)]) {
      await assert.rejects(call, (error) => error instanceof OpenAI.NotFoundError
        && error.code === 'file_not_found');
    }
  });

  it('are listed in pages', async () => {
    const sdk = client();
    const ids = [];
    for (let i = 0; i < 3; i += 1) ids.push((await upload(sdk, chats, `${i}.jsonl`)).id);

    const page = await sdk.files.list({ purpose: 'fine-tune', limit: 2, order: 'desc' });
    assert.deepEqual(page.data.map((file) => file.id), [ids[2], ids[1]]);
    assert.ok(page.hasNextPage());
    assert.equal((await page.getNextPage()).data[0].id, ids[0]);
    for (const order of ['asc', 'desc']) {
      const listed = (await idsOf(sdk.files.list({ limit: 1, order }))).filter((id) => ids.includes(id));
      assert.deepEqual(listed, order === 'asc' ? ids : [...ids].reverse());
    }
    for (const id of ids) await sdk.files.delete(id);
  });
});

describe('fine-tuning', () => {
  const sdk = client();
  const { jobs } = sdk.fineTuning;
  const files = [];
  const marks = [];

  // Starts a job of this suite; its metadata identifies it.
  async function start(more = {}) {
    const file = await upload(sdk);
    files.push(file.id);
    const metadata = { test: randomUUID() };
    marks.push(metadata);
    const job = await jobs.create({ model, training_file: file.id, metadata, ...more });
    return { job, file, metadata };
  }

  async function reaches(id, states) {
    const end = Date.now() + patienceMs;
    let job;
    while (Date.now() < end) {
      job = await jobs.retrieve(id);
      if (states.includes(job.status)) return job;
      await pause(100);
    }
    return assert.fail(`${id} is ${job.status}, not one of ${states}`);
  }

  async function succeeds(id) {
    const job = await reaches(id, ended);
    assert.equal(job.status, 'succeeded', JSON.stringify(job.error));
    return job;
  }

  after(async () => {
    for (const metadata of marks) {
      for await (const job of jobs.list({ metadata })) {
        if (!ended.includes(job.status)) await jobs.cancel(job.id);
        await reaches(job.id, ended);
      }
    }
    for (const id of files) await sdk.files.delete(id);
  });

  it('makes a model that answers while the next one is trained', async () => {
    const valid = await upload(sdk);
    files.push(valid.id);
    const { job, file, metadata } = await start({
      suffix: 'guide', seed: 3, validation_file: valid.id,
      method: supervised({ n_epochs: 2, batch_size: 4 }),
    });
    assert.ok(['validating_files', 'queued', 'running'].includes(job.status));
    assert.deepEqual(job.metadata, metadata);
    assert.equal(job.method.supervised.hyperparameters.n_epochs, 2);
    await assert.rejects(client({ maxRetries: 3 }).files.delete(file.id),
      (error) => error instanceof OpenAI.ConflictError && error.code === 'in_use');

    // The types have no call for a stream of events; the guide uses curl.
    const streamed = await collect(await sdk.get(`/fine_tuning/jobs/${job.id}/events`,
      { query: { stream: true }, stream: true }));
    const losses = streamed.filter((event) => event.data?.train_loss !== undefined)
      .map((event) => event.data);
    assert.deepEqual(losses.map((data) => data.step), [1, 2, 3, 4, 5, 6]);
    assert.ok(losses.at(-1).train_loss < losses[0].train_loss);

    const done = await succeeds(job.id);
    assert.match(done.fine_tuned_model, new RegExp(`^ft:${model}:local:guide:`));
    const table = await (await sdk.files.content(done.result_files[0])).text();
    assert.ok(table.startsWith('step,train_loss,train_accuracy,valid_loss,'));
    const events = await collect(jobs.listEvents(job.id, { limit: 3 }));
    assert.deepEqual(events.map((event) => event.id).sort(),
      streamed.map((event) => event.id).sort());
    const page = await jobs.listEvents(job.id, { limit: 3 });
    assert.equal(page.data.length, 3);
    assert.ok(page.hasNextPage());
    assert.deepEqual((await page.getNextPage()).data, events.slice(3, 6));
    const checkpoints = await collect(jobs.checkpoints.list(job.id, { limit: 1 }));
    const last = checkpoints.filter((one) => one.step_number === 6);
    assert.equal(last.length, 1);
    assert.equal(last[0].fine_tuned_model_checkpoint, done.fine_tuned_model);
    assert.equal(last[0].fine_tuning_job_id, job.id);

    const other = await start({ method: supervised({ n_epochs: 50, batch_size: 1 }) });
    await reaches(other.job.id, ['running']);
    const asked = {
      model: done.fine_tuned_model, messages: [question('dog')], max_tokens: 40, temperature: 0,
    };
    const plain = await sdk.chat.completions.create(asked);
    const chunks = await collect(await sdk.chat.completions.create({ ...asked, stream: true }));
    assert.equal(chunks.map((chunk) => chunk.choices[0].delta.content ?? '').join(''),
      plain.choices[0].message.content);
    assert.ok(chunks.every((chunk) => chunk.model === done.fine_tuned_model));
    assert.equal((await jobs.retrieve(other.job.id)).status, 'running');
    await jobs.cancel(other.job.id);

    assert.equal((await sdk.models.retrieve(done.fine_tuned_model)).id, done.fine_tuned_model);
    assert.equal((await sdk.models.delete(done.fine_tuned_model)).deleted, true);
    await assert.rejects(sdk.chat.completions.create(asked), OpenAI.NotFoundError);
    assert.equal((await reaches(other.job.id, ended)).status, 'cancelled');
  });

  it('learns preferences', async () => {
    const file = await upload(sdk, pairs);
    files.push(file.id);
    const { job } = await start({
      training_file: file.id,
      method: { type: 'dpo', dpo: { hyperparameters: { beta: 0.2, n_epochs: 1, batch_size: 4 } } },
    });

    assert.equal(job.method.dpo.hyperparameters.beta, 0.2);
    const done = await succeeds(job.id);
    assert.equal((await sdk.models.delete(done.fine_tuned_model)).deleted, true);
  });

  it('pauses, resumes and cancels', async () => {
    const { job } = await start({ method: supervised({ n_epochs: 50, batch_size: 1 }) });
    await reaches(job.id, ['running']);

    assert.equal((await jobs.pause(job.id)).id, job.id);
    await reaches(job.id, ['paused']);
    assert.ok(['queued', 'running'].includes((await jobs.resume(job.id)).status));
    await reaches(job.id, ['running']);
    assert.equal((await jobs.cancel(job.id)).id, job.id);

    assert.equal((await reaches(job.id, ended)).status, 'cancelled');
    for (const call of ['pause', 'resume', 'cancel']) {
      await assert.rejects(jobs[call](job.id), (error) => error instanceof OpenAI.BadRequestError
        && error.code === 'job_not_active');
    }
  });

  it('lists jobs by metadata, in pages', async () => {
    const ids = [];
    const mark = { mark: randomUUID() };
    for (const n of ['0', '1', '2']) {
      const { job } = await start({ metadata: { ...mark, n } });
      await jobs.cancel(job.id);
      ids.push(job.id);
    }
    marks.push(mark);

    assert.deepEqual(await idsOf(jobs.list({ metadata: mark, limit: 1 })), [...ids].reverse());
    assert.deepEqual(await idsOf(jobs.list({ metadata: { ...mark, n: '1' } })), [ids[1]]);
    const page = await jobs.list({ metadata: mark, limit: 2 });
    assert.ok(page.hasNextPage());
    assert.deepEqual((await page.getNextPage()).data.map((job) => job.id), [ids[0]]);
    assert.deepEqual((await jobs.list({ metadata: mark, after: ids[0] })).data, []);
  });

  it('refuses what is wrong, with its class and its place', async () => {
    const spoiled = await upload(sdk, chats.replace('"assistant"', '"nobody"'));
    files.push(spoiled.id);
    for (const [more, kind, code, param] of [
      [{ model: 'gpt-4o' }, OpenAI.NotFoundError, 'model_not_found', 'model'],
      [{ training_file: 'file-none' }, OpenAI.NotFoundError, 'file_not_found', 'training_file'],
      [{ training_file: spoiled.id }, OpenAI.BadRequestError, 'invalid_training_file',
        'training_file'],
      [{ method: { type: 'reinforcement' } }, OpenAI.BadRequestError, 'unsupported_value', 'method'],
    ]) {
      await assert.rejects(start(more), (error) => {
        assert.equal(error.constructor, kind);
        assert.deepEqual([error.code, error.param], [code, param]);
        return true;
      });
    }
    await assert.rejects(jobs.retrieve('ftjob-none'),
      (error) => error instanceof OpenAI.NotFoundError && error.code === 'job_not_found');
  });
});
