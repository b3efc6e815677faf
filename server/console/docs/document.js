// What an OpenAPI document says, without a page: references, types, examples, groups.

const METHODS = ['get', 'post', 'put', 'patch', 'delete'];
const MAX_DEPTH = 6; // of a made-up example

// The object that `$ref` names, or the value itself. References of references are followed.
export function resolve(api, value) {
  for (let hops = 0; hops < 8 && value && value.$ref; hops++) {
    const names = value.$ref.slice(2).split('/');
    value = names.reduce(
      (at, name) => at?.[name.replaceAll('~1', '/').replaceAll('~0', '~')], api);
  }
  return value ?? {};
}

export function nameOfReference(value) {
  return value?.$ref ? value.$ref.slice(value.$ref.lastIndexOf('/') + 1) : '';
}

// [{name, description, operations}], in the order of `tags`; an operation without a tag is Other.
export function groupsOf(api) {
  const groups = new Map();
  for (const tag of api.tags ?? []) {
    groups.set(tag.name, {name: tag.name, description: tag.description ?? '', operations: []});
  }
  for (const [path, item] of Object.entries(api.paths ?? {})) {
    for (const method of METHODS) {
      if (!item[method]) continue;
      const operation = operationOf(api, path, method, item);
      if (!groups.has(operation.tag)) {
        groups.set(operation.tag, {name: operation.tag, description: '', operations: []});
      }
      groups.get(operation.tag).operations.push(operation);
    }
  }
  return [...groups.values()].filter((group) => group.operations.length > 0);
}

function operationOf(api, path, method, item) {
  const operation = item[method];
  const [bodyType, bodyMedia] = Object.entries(operation.requestBody?.content ?? {})[0] ?? [];
  return {
    id: operation.operationId ?? `${method}-${path}`,
    tag: operation.tags?.[0] ?? 'Other',
    method,
    path,
    summary: operation.summary ?? '',
    description: operation.description ?? '',
    parameters: [...(item.parameters ?? []), ...(operation.parameters ?? [])]
      .map((parameter) => resolve(api, parameter)),
    bodyType,
    bodySchema: bodyMedia?.schema,
    example: bodyMedia ? bodyMedia.example ?? sampleOf(api, bodyMedia.schema) : undefined,
    responses: Object.entries(operation.responses ?? {})
      .map(([status, response]) => [status, resolve(api, response)]),
    key: keyOf(operation.security ?? api.security ?? []),
  };
}

// Which key a request needs: 'none', 'admin key', or 'API key' (if the server has keys).
function keyOf(security) {
  if (security.length === 0) return 'none';
  return security.some((choice) => 'apiKey' in choice) ? 'API key' : 'admin key';
}

// 'integer or null', 'array of Message', 'one of 3'.
export function typeOf(api, schema) {
  const name = nameOfReference(schema);
  if (name) return name;
  if (!schema) return 'any';
  if ('const' in schema) return JSON.stringify(schema.const);
  const choices = schema.oneOf ?? schema.anyOf;
  if (!schema.type && choices) {
    const types = [...new Set(choices.map((choice) => typeOf(api, choice)))];
    return types.length <= 3 ? types.join(' or ') : `one of ${choices.length} forms`;
  }
  const types = [schema.type ?? (schema.properties ? 'object' : schema.enum ? 'value' : 'any')];
  return types.flat().map((type) =>
    type === 'array' && schema.items ? `array of ${typeOf(api, schema.items)}` : type).join(' or ');
}

const BOUNDS = {
  minimum: '≥', exclusiveMinimum: '>', maximum: '≤', exclusiveMaximum: '<', minLength: 'length ≥',
  maxLength: 'length ≤', minItems: 'items ≥', maxItems: 'items ≤', maxProperties: 'members ≤',
  multipleOf: 'multiple of', pattern: 'pattern', format: 'format',
};

// ['≥ 0', 'default 1', …]
export function boundsOf(schema) {
  const bounds = Object.keys(BOUNDS).filter((key) => key in schema)
    .map((key) => `${BOUNDS[key]} ${schema[key]}`);
  if (schema.enum) bounds.push(schema.enum.map((value) => JSON.stringify(value)).join(' · '));
  if ('default' in schema) bounds.push(`default ${JSON.stringify(schema.default)}`);
  return bounds;
}

// Rows of a schema one level down: [{name, schema, isRequired}]. Empty for scalars.
export function partsOf(api, schema) {
  const at = resolve(api, schema);
  const rows = [];
  for (const part of at.allOf ?? []) rows.push(...partsOf(api, part));
  for (const [name, property] of Object.entries(at.properties ?? {})) {
    rows.push({name, schema: property, isRequired: (at.required ?? []).includes(name) });
  }
  const other = at.additionalProperties;
  if (other && typeof other === 'object' && Object.keys(other).length) {
    rows.push({name: 'any name', schema: other});
  }
  if (at.items && isNested(api, at.items)) rows.push({name: 'each item', schema: at.items});
  for (const choice of at.oneOf ?? at.anyOf ?? []) {
    if (isNested(api, choice)) rows.push({name: 'or', schema: choice});
  }
  return rows;
}

function isNested(api, schema) {
  const at = resolve(api, schema);
  return Boolean(at.properties || at.items || at.allOf || at.oneOf || at.anyOf ||
                 typeof at.additionalProperties === 'object' || at.enum);
}

// A small value of the schema: required members only.
export function sampleOf(api, schema, depth = 0) {
  const at = resolve(api, schema);
  if ('example' in at) return at.example;
  if (at.examples?.length) return at.examples[0];
  if ('const' in at) return at.const;
  if ('default' in at) return at.default;
  if (at.enum) return at.enum[0];
  if (depth > MAX_DEPTH) return null;
  const choice = (at.allOf ?? at.oneOf ?? at.anyOf ?? [])[0];
  if (choice && !at.properties) return sampleOf(api, choice, depth + 1);
  const type = [at.type ?? (at.properties ? 'object' : 'string')].flat()[0];
  if (type === 'object') {
    const required = (at.required ?? []).filter((name) => at.properties?.[name]);
    return Object.fromEntries(
      required.map((name) => [name, sampleOf(api, at.properties[name], depth + 1)]));
  }
  if (type === 'array') return at.minItems ? [sampleOf(api, at.items, depth + 1)] : [];
  if (type === 'integer' || type === 'number') return at.minimum ?? 0;
  if (type === 'boolean') return false;
  return type === 'null' ? null : '';
}

// The words that a search looks through.
export function searchTextOf(api, operation) {
  const fields = partsOf(api, operation.bodySchema).map((part) => part.name);
  return [operation.method, operation.path, operation.id, operation.summary, operation.tag,
          ...operation.parameters.map((parameter) => parameter.name), ...fields]
    .join(' ').toLowerCase();
}
