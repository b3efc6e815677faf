// Runs a published program in an empty directory of its own, away from all other services.

import { spawn } from 'node:child_process';
import { mkdtempSync, writeFileSync } from 'node:fs';
import { createServer } from 'node:http';
import { tmpdir } from 'node:os';
import { dirname, join } from 'node:path';
import { fileURLToPath } from 'node:url';

const bin = join(dirname(fileURLToPath(import.meta.url)), 'node_modules', '.bin');
const limitMs = 120_000;

// A directory with greeting.txt, which says hello.
export function project() {
  const directory = mkdtempSync(join(tmpdir(), 'agent-'));
  writeFileSync(join(directory, 'greeting.txt'), 'hello\n');
  return directory;
}

// { code, stdout, stderr, others }: the other services that the program asked for.
export async function run(name, args, { directory, environment }) {
  const others = [];
  const proxy = createServer((request, answer) => {
    others.push(request.url);
    answer.writeHead(403).end();
  });
  proxy.on('connect', (request, socket) => {
    others.push(request.url);
    socket.end('HTTP/1.1 403 Forbidden\r\n\r\n');
  });
  await new Promise((resolve) => { proxy.listen(0, '127.0.0.1', resolve); });
  const refuser = `http://127.0.0.1:${proxy.address().port}`;
  const child = spawn(join(bin, name), args, {
    cwd: directory,
    stdio: ['ignore', 'pipe', 'pipe'],
    timeout: limitMs,
    env: {
      PATH: process.env.PATH, HOME: directory, LANG: 'C.UTF-8', TMPDIR: directory,
      HTTP_PROXY: refuser, HTTPS_PROXY: refuser, NO_PROXY: '127.0.0.1',
      http_proxy: refuser, https_proxy: refuser, no_proxy: '127.0.0.1', ...environment,
    },
  });
  const output = { stdout: '', stderr: '' };
  for (const stream of ['stdout', 'stderr']) {
    child[stream].setEncoding('utf8').on('data', (text) => { output[stream] += text; });
  }
  const code = await new Promise((resolve, reject) => {
    child.on('error', reject).on('close', resolve);
  });
  proxy.close();
  return { code, others, ...output };
}
