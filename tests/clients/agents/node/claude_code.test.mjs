// Claude Code in print mode: a text, and tools that write a file and run a command.

import assert from 'node:assert/strict';
import { readFileSync } from 'node:fs';
import { join } from 'node:path';
import { describe, it } from 'node:test';

import { project, run } from './program.mjs';
import { expected, key, url } from './support.mjs';

// The settings of a user, see server/API.md.
const environment = {
  ANTHROPIC_BASE_URL: url, ANTHROPIC_AUTH_TOKEN: key, ANTHROPIC_MODEL: 'scripted',
  ANTHROPIC_SMALL_FAST_MODEL: 'scripted', CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC: '1',
  DISABLE_AUTOUPDATER: '1',
};

async function print(directory, prompt, ...args) {
  const result = await run('claude', ['--print', prompt, '--output-format', 'json', ...args],
    { directory, environment });
  assert.equal(result.code, 0, `${result.stdout}\n${result.stderr}`);
  assert.deepEqual(result.others, []);
  return JSON.parse(result.stdout);
}

describe('claude --print', () => {
  it('prints the answer and its usage', async () => {
    const answer = await print(project(), 'Hello');

    assert.equal(answer.result, expected.plain);
    assert.equal(answer.is_error, false);
    assert.ok(answer.usage.output_tokens > 5);
  });

  it('writes a file with its tool', async () => {
    const directory = project();
    const answer = await print(directory, 'Write a letter. #write', '--allowedTools', 'Write');

    assert.equal(readFileSync(join(directory, 'letter.txt'), 'utf8'), 'Dear reader\n');
    assert.equal(answer.result, 'The letter is written.');
    assert.equal(answer.num_turns, 2);
  });

  it('runs a command and sends its output back', async () => {
    const answer = await print(project(), 'Read the greeting. #bash', '--allowedTools', 'Bash');

    assert.equal(answer.result, 'The greeting is read.');
    assert.deepEqual(answer.permission_denials, []);
  });
});
