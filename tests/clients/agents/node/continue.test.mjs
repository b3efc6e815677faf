// Continue's command line in print mode: a text, and tools that read and write a file.

import assert from 'node:assert/strict';
import { readFileSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { describe, it } from 'node:test';

import { project, run } from './program.mjs';
import { base, expected, key, url } from './support.mjs';

// The files of a user, see server/API.md.
const config = (provider, address) => `
name: Local
version: 1.0.0
schema: v1
models:
  - name: Tandem
    provider: ${provider}
    model: scripted
    apiBase: ${address}
    apiKey: ${key}
    roles: [chat]
`;

async function print(provider, directory, prompt, ...args) {
  const file = join(directory, 'config.yaml');
  writeFileSync(file, config(provider, provider === 'ollama' ? url : base));
  const result = await run('cn', ['--print', '--config', file, ...args, prompt],
    { directory, environment: { CONTINUE_TELEMETRY_ENABLED: '0' } });
  assert.equal(result.code, 0, `${result.stdout}\n${result.stderr}`);
  assert.deepEqual(result.others, []);
  return result.stdout.trim();
}

const skip = Number(process.versions.node.split('.')[0]) < 20 && 'needs Node 20';

for (const provider of ['ollama', 'openai']) {
  describe(`cn --print with the provider ${provider}`, { skip }, () => {
    it('prints the answer', async () => {
      assert.equal(await print(provider, project(), 'Hello'), expected.plain);
    });

    it('sends the content of a file back', async () => {
      const answer = await print(provider, project(), 'Read the greeting. #read');

      assert.equal(answer, 'The greeting is read.');
    });

    it('writes a file with its tool', async () => {
      const directory = project();
      const answer = await print(provider, directory, 'Write a letter. #write-path', '--auto');

      assert.equal(readFileSync(join(directory, 'letter.txt'), 'utf8'), 'Dear reader\n');
      assert.equal(answer, 'The letter is written.');
    });
  });
}
