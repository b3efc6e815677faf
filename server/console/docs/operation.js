// One operation as a folded section: parameters, a form that sends it, its curl, body and answers.

import {h, button, field} from '../lib/dom.js';
import {curlOf} from '../lib/curl.js';
import {copy, visible} from '../lib/text.js';
import {boundsOf, nameOfReference, partsOf, resolve, typeOf} from './document.js';
import {pathOf, send} from './request.js';

const MAX_DEPTH = 16;  // of opened schemas

// Text with `code`.
export const prose = (text) => text.split('`').map((part, n) => n % 2 ? h('code', null, part) : part);

// A fold that gets its content when it is opened for the first time.
function folded(tag, summary, content) {
  const el = h(tag, null, h('summary', null, summary));
  el.addEventListener('toggle', () => {
    if (el.open && el.children.length === 1) el.append(...[content()].flat(Infinity));
  });
  return el;
}

// `outer` are the names of the schemas around this one: a schema inside itself stays a name.
function schemaList(api, schema, outer = []) {
  const rows = partsOf(api, schema).map((part) => schemaRow(api, part, outer));
  return rows.length ? [h('ul.fields', null, rows)] : [];
}

function schemaRow(api, part, outer) {
  const schema = resolve(api, part.schema);
  const name = nameOfReference(part.schema);
  const bounds = boundsOf(schema);
  const isInside = name && outer.includes(name);
  const head = [h('code.name', null, part.name), ' ', h('span.type', null, typeOf(api, part.schema)),
    part.isRequired && [' ', h('strong', null, 'required')],
    bounds.length > 0 && [' ', h('span.type', null, bounds.join(', '))],
    isInside && h('span.type', null, ', as above'),
    schema.description && h('span.about', null, prose(schema.description))];
  const inner = [...outer, name];
  if (isInside || inner.length > MAX_DEPTH || partsOf(api, part.schema).length === 0) return h('li', null, head);
  return h('li', null, folded('details.schema', head, () => schemaList(api, part.schema, inner)));
}

const titled = (title, ...content) => content.flat().length ? [h('h4', null, title), content] : [];

const parameters = (api, operation) => titled('Parameters', operation.parameters.length ?
  [h('ul.fields', null, operation.parameters.map((parameter) => schemaRow(api, {
    name: parameter.name, isRequired: parameter.required,
    schema: {...parameter.schema, description: parameter.description}}, [])))] : []);

function answers(api, operation) {
  const row = ([status, response]) => {
    const head = [h('code.name', null, status), ' ', prose(response.description ?? '')];
    const media = Object.entries(response.content ?? {});
    if (!media.length) return h('li', null, head);
    return h('li', null, folded('details.schema', head, () => media.map(([type, {schema}]) => [
      h('p.type', null, `${type}: ${typeOf(api, schema)}`), schemaList(api, schema, [nameOfReference(schema)])])));
  };
  return titled('Answers', h('ul.fields', null, operation.responses.map(row)));
}

// The inputs of an operation: elements to show, their values, and the body as text.
function inputsOf(operation) {
  const inputs = new Map();
  const fields = operation.parameters.filter(({in: place}) => place !== 'header').map(({name, in: place}) => {
    inputs.set(name, h('input', {type: 'text', autocomplete: 'off', spellcheck: 'false', required: place === 'path'}));
    return field(name, inputs.get(name));
  });
  const body = operation.bodyType === 'application/json' ? h('textarea', {
    rows: 8, spellcheck: 'false', value: JSON.stringify(operation.example, null, 2)}) : null;
  if (body) fields.push(field('Body (JSON)', body));
  return {
    fields, elements: [...inputs.values(), body].filter(Boolean), body: () => body?.value,
    values: () => Object.fromEntries([...inputs].map(([name, input]) => [name, input.value.trim()])),
  };
}

function curlText(operation, inputs) {
  const request = {method: operation.method.toUpperCase(), path: pathOf(operation, inputs.values())};
  if (operation.bodyType === 'multipart/form-data') Object.assign(request, {file: 'FILE', fields: {purpose: 'fine-tune'}});
  if (inputs.body() !== undefined) {
    try { request.body = JSON.parse(inputs.body()); } catch (error) { return `The body is not JSON: ${error.message}`; }
  }
  return curlOf(request);
}

function curlBlock(operation, inputs) {
  const code = h('pre', {tabindex: 0, 'aria-label': 'The request as curl'});
  const done = h('span', {role: 'status'});
  const show = () => { code.textContent = visible(curlText(operation, inputs)); done.textContent = ''; };
  for (const el of inputs.elements) el.addEventListener('input', show);
  addEventListener('tandem-key', show);
  show();
  return titled('curl', code, button('Copy', async () => {
    done.textContent = await copy(curlText(operation, inputs), code) ? ' Copied' : ' Press Ctrl+C';
  }), done);
}

function form(operation, inputs) {
  const stop = h('button', {type: 'button', hidden: true}, 'Stop');
  const status = h('p', {role: 'status'});
  const output = h('pre', {tabindex: 0, hidden: true, 'aria-label': 'The answer'});
  let running = null;
  stop.addEventListener('click', () => running?.abort());
  const submit = async (event) => {
    event.preventDefault();
    running?.abort();
    const mine = running = new AbortController();
    const began = performance.now();
    const say = (text) => { if (running === mine) status.textContent = text; };
    stop.hidden = output.hidden = false;
    output.textContent = '';
    say('Waiting for the answer');
    try {
      const answer = await send(operation, inputs.values(), inputs.body(), mine.signal, (text) => {
        if (running === mine) output.textContent = visible(text);
      });
      const time = ((performance.now() - began) / 1000).toFixed(2);
      say(`${answer.status} in ${time} s${answer.requestId && `, request ${visible(answer.requestId)}`}`);
    } catch (error) {
      say(mine.signal.aborted ? 'Stopped' : 'The server does not answer. Check that it still runs.');
    }
    if (running === mine) { running = null; stop.hidden = true; }
  };
  return titled('Try it', h('form', {onsubmit: submit}, inputs.fields,
    h('p.row', null, h('button.primary', {type: 'submit'}, 'Send'), stop), status, output));
}

// GETs, and POSTs of JSON or without a body. Others only show their curl.
const canSend = ({method, bodyType}) =>
  method === 'get' || (method === 'post' && (!bodyType || bodyType === 'application/json'));

const KEYS = {'none': 'Needs no key.', 'API key': 'Needs an API key, if the server has keys.', 'admin key': 'Needs the admin key.'};

// The section of an operation. Its content is made when it is opened.
export function operationSection(api, operation) {
  const head = [h(`span.method.${operation.method}`, null, operation.method.toUpperCase()), ' ',
    h('code', null, operation.path), ' ', h('span.type', null, operation.summary)];
  const el = folded('details.operation', head, () => {
    const inputs = inputsOf(operation);
    return h('div.inside', null,
      operation.description && h('p', null, prose(operation.description)),
      h('p.type', null, KEYS[operation.key], ' ', h('a', {href: `#${operation.id}`}, 'Link to this operation')),
      canSend(operation) ? form(operation, inputs) : inputs.fields,
      curlBlock(operation, inputs),
      parameters(api, operation),
      operation.bodySchema && titled(`Body: ${operation.bodyType}`,
        schemaList(api, operation.bodySchema, [nameOfReference(operation.bodySchema)])),
      answers(api, operation));
  });
  el.id = operation.id;
  return el;
}
