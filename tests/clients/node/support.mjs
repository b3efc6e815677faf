// Shared by the Node suites: addresses, long requests, and queries of the server's state.

import { randomUUID } from 'node:crypto';

export const {
  TANDEM_URL: url, TANDEM_BUSY_URL: busyUrl, TANDEM_STUB_URL: stubUrl, TANDEM_TLS_URL: tlsUrl,
  TANDEM_TUNING_URL: tuningUrl,
} = process.env;
export const apiKey = process.env.TANDEM_TEST_API_KEY;
export const adminKey = process.env.TANDEM_TEST_ADMIN_KEY;
export const model = 'tandem-stories';
export const messages = [{ role: 'user', content: 'Tell me a story about a dog.' }];
// About a minute of work: 128 sequences that end only at the limit.
export const long = { model, prompt: 'Once upon a time', max_tokens: 900, n: 128, ignore_eos: true };
export const longChat = { model, messages, max_tokens: 900, n: 128, ignore_eos: true };
// Cancelled work disappears at once. The limit is for slow machines, and far below `long`'s time.
const limitMs = 20_000;

export const pause = (ms) => new Promise((resolve) => setTimeout(resolve, ms));

export async function ask(path, { base = url, key = apiKey } = {}) {
  const answer = await fetch(base + path, { headers: { authorization: `Bearer ${key}` } });
  return { status: answer.status, body: await answer.json() };
}

// The number of running or waiting sequences.
export async function work(base = url) {
  const { body } = await ask('/admin/models', { base, key: adminKey });
  return body.data.reduce((sum, entry) => sum + entry.running + entry.waiting, 0);
}

async function workBecomes(condition, base) {
  const end = Date.now() + limitMs;
  while (Date.now() < end) {
    if (condition(await work(base))) return true;
    await pause(20);
  }
  return false;
}

export const becomesIdle = (base = url) => workBecomes((n) => n === 0, base);
export const becomesBusy = (base = url) => workBecomes((n) => n > 0, base);

// Headers that make the stub refuse, and the arrival times of requests with them.
export function refusals(fail, { retryAfter, shouldRetry } = {}) {
  const id = randomUUID();
  const headers = { 'x-stub-fail': fail, 'x-stub-id': id };
  if (retryAfter !== undefined) headers['x-stub-retry-after'] = String(retryAfter);
  if (shouldRetry !== undefined) headers['x-stub-should-retry'] = shouldRetry;
  return { headers, arrivals: async () => (await ask(`/stub/${id}`, { base: stubUrl })).body };
}
