// Codex in exec mode: a file edit through apply_patch, a command, an answer of a schema.

import assert from 'node:assert/strict';
import { mkdirSync, readFileSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { describe, it } from 'node:test';

import { project, run } from './program.mjs';
import { base, expected, key, model } from './support.mjs';

// The settings of a user, see server/API.md. The catalogue gives the model the tool apply_patch.
const config = (home) => `
model = "${model}"
model_provider = "tandem"
model_catalog_json = "${join(home, 'models.json')}"
check_for_update_on_startup = false
web_search = "disabled"
[model_providers.tandem]
name = "Tandem"
base_url = "${base}"
env_key = "TANDEM_API_KEY"
wire_api = "responses"
request_max_retries = 0
stream_max_retries = 0
[analytics]
enabled = false
[features]
plugins = false
apps = false
`;
const catalogue = {
  models: [{
    slug: model, display_name: model, description: null, supported_reasoning_levels: [],
    shell_type: 'shell_command', visibility: 'list', supported_in_api: true, priority: 1,
    availability_nux: null, upgrade: null, base_instructions: 'You are a coding agent.',
    supports_reasoning_summaries: false, support_verbosity: false, default_verbosity: null,
    apply_patch_tool_type: 'freeform', truncation_policy: { mode: 'bytes', limit: 10000 },
    supports_parallel_tool_calls: true, context_window: 200000, experimental_supported_tools: [],
    input_modalities: ['text'],
  }],
};

function exec(directory, ...args) {
  const home = join(directory, '.codex');
  mkdirSync(home, { recursive: true });
  writeFileSync(join(home, 'config.toml'), config(home));
  writeFileSync(join(home, 'models.json'), JSON.stringify(catalogue));
  return run('codex', ['exec', '--skip-git-repo-check', '--json',
    '--dangerously-bypass-approvals-and-sandbox', ...args],
  { directory, environment: { CODEX_HOME: home, TANDEM_API_KEY: key } });
}

const itemsOf = ({ stdout }) => stdout.split('\n').filter((line) => line.startsWith('{'))
  .map((line) => JSON.parse(line)).filter((event) => event.type === 'item.completed')
  .map((event) => event.item);

function succeeded(result) {
  assert.equal(result.code, 0, `${result.stdout}\n${result.stderr}`);
  assert.deepEqual(result.others, []);
}

describe('codex exec', () => {
  it('edits a file through apply_patch and reports it', async () => {
    const directory = project();
    const result = await exec(directory, 'Change the greeting. #patch');

    succeeded(result);
    assert.equal(readFileSync(join(directory, 'greeting.txt'), 'utf8'), 'goodbye\n');
    assert.deepEqual(itemsOf(result).map((item) => item.type), ['file_change', 'agent_message']);
    assert.equal(itemsOf(result).at(-1).text, 'The greeting is changed.');
  });

  it('runs a command and sends its output back', async () => {
    const result = await exec(project(), 'Read the greeting. #shell');
    const items = itemsOf(result);

    succeeded(result);
    assert.equal(items[0].type, 'command_execution');
    assert.equal(items[0].aggregated_output.trim(), 'hello');
    assert.equal(items.at(-1).text, 'The greeting is read.');
  });

  it('answers with an object of the schema that the user gave', async () => {
    const directory = project();
    writeFileSync(join(directory, 'schema.json'), JSON.stringify({
      type: 'object', additionalProperties: false, required: ['name', 'age', 'languages'],
      properties: {
        name: { type: 'string' }, age: { type: 'integer' },
        languages: { type: 'array', items: { type: 'string' } },
      },
    }));
    const result = await exec(directory, '--output-schema', 'schema.json', 'Who? #person');

    succeeded(result);
    assert.deepEqual(JSON.parse(itemsOf(result).at(-1).text), expected.ada);
  });
});
