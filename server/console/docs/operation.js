// One operation as a folded section: parameters, body, answers, curl, and a form that sends it.

import { h } from "../lib/dom.js";
import { boundsOf, nameOfReference, partsOf, resolve, typeOf } from "./document.js";
import { curlOf, send } from "./request.js";

const kMaxDepth = 16; // of opened schemas

// Text with `code`.
export function prose(text) {
  return text.split("`").map((part, n) => (n % 2 ? h("code", {}, part) : part));
}

// A section that fills itself when it is opened for the first time.
function folded(className, summary, fill) {
  const details = h("details", { class: className }, h("summary", {}, ...summary));
  details.addEventListener("toggle", () => {
    if (!details.open || details.dataset.filled) return;
    details.dataset.filled = "yes";
    details.append(...fill());
  });
  return details;
}

// `outer` are the names of the schemas around this one: a schema inside itself stays a name.
function schemaRows(document, schema, outer = []) {
  const rows = partsOf(document, schema).map((part) => schemaRow(document, part, outer));
  return rows.length ? [h("ul", { class: "fields" }, ...rows)] : [];
}

function schemaRow(document, part, outer) {
  const at = resolve(document, part.schema);
  const name = nameOfReference(part.schema);
  const head = [h("code", { class: "name" }, part.name), " ",
                h("span", { class: "type" }, typeOf(document, part.schema))];
  if (part.isRequired) head.push(" ", h("strong", {}, "required"));
  const bounds = boundsOf(at);
  if (bounds.length) head.push(" ", h("span", { class: "bounds" }, bounds.join(", ")));
  if (at.description) head.push(h("p", {}, ...prose(at.description)));
  const isInside = name && outer.includes(name);
  if (isInside) head.push(h("p", {}, `The same as ${name} above.`));
  const inner = name ? [...outer, name] : [...outer, ""];
  if (isInside || inner.length > kMaxDepth || partsOf(document, part.schema).length === 0) {
    return h("li", {}, ...head);
  }
  return h("li", {}, folded("schema", head, () => schemaRows(document, part.schema, inner)));
}

function titled(title, ...content) {
  return content.length ? [h("h4", {}, title), ...content] : [];
}

function parameterList(document, operation) {
  if (operation.parameters.length === 0) return [];
  const rows = operation.parameters.map((parameter) => schemaRow(document, {
    name: parameter.name, isRequired: parameter.required,
    schema: { ...parameter.schema, description: parameter.description },
  }, []));
  return titled("Parameters", h("ul", { class: "fields" }, ...rows));
}

function answerList(document, operation) {
  const rows = operation.responses.map(([status, response]) => {
    const head = [h("code", { class: "name" }, status), " ", ...prose(response.description ?? "")];
    const media = Object.entries(response.content ?? {});
    if (media.length === 0) return h("li", {}, ...head);
    return h("li", {}, folded("schema", head, () => media.flatMap(([type, { schema }]) => [
      h("p", { class: "type" }, `${type}: ${typeOf(document, schema)}`),
      ...schemaRows(document, schema, [nameOfReference(schema)]),
    ])));
  });
  return titled("Answers", h("ul", { class: "fields" }, ...rows));
}

function copyButton(textOf) {
  const button = h("button", { type: "button" }, "Copy");
  button.addEventListener("click", async () => {
    try {
      await navigator.clipboard.writeText(textOf());
      button.textContent = "Copied";
    } catch {
      button.textContent = "Copying failed: select the text";
    }
    setTimeout(() => { button.textContent = "Copy"; }, 2000);
  });
  return button;
}

// Inputs, curl and the answer. `keyOf` returns the key of the session.
function tryIt(operation, keyOf) {
  const inputs = new Map();
  const fields = operation.parameters.filter((parameter) => parameter.in !== "header")
    .map((parameter) => {
      const input = h("input", { type: "text", autocomplete: "off", spellcheck: "false" });
      inputs.set(parameter.name, input);
      return h("label", {}, parameter.name, input);
    });
  const isJson = operation.bodyType === "application/json";
  const body = isJson ? h("textarea", { rows: "8", spellcheck: "false" }) : null;
  if (body) {
    body.value = JSON.stringify(operation.example, null, 2);
    fields.push(h("label", {}, "Body, as JSON", body));
  }
  const values = () => Object.fromEntries(
    [...inputs].map(([name, input]) => [name, input.value.trim()]));
  const curl = h("pre", { tabindex: "0", "aria-label": "The request as curl" });
  const showCurl = () => { curl.textContent = curlOf(operation, values(), body?.value); };
  for (const field of [...inputs.values(), body]) field?.addEventListener("input", showCurl);
  showCurl();
  const curlBlock = [h("h4", {}, "curl"), curl, copyButton(() => curl.textContent)];
  const canSend = operation.method === "get" ||
                  (operation.method === "post" && (isJson || !operation.bodyType));
  if (!canSend) return [...fields.length ? [h("div", { class: "inputs" }, ...fields)] : [], ...curlBlock];
  return [h("h4", {}, "Try it"), sendForm(operation, { fields, values, body, inputs, keyOf }),
          ...curlBlock];
}

function sendForm(operation, { fields, values, body, inputs, keyOf }) {
  const button = h("button", { type: "submit", class: "primary" }, "Send");
  const stop = h("button", { type: "button", hidden: true }, "Stop");
  const status = h("p", { role: "status" });
  const output = h("pre", { class: "answer", tabindex: "0", hidden: true, "aria-label": "The answer" });
  const form = h("form", { class: "inputs" }, ...fields, h("p", {}, button, " ", stop), status, output);
  for (const parameter of operation.parameters) {
    if (parameter.in === "path") inputs.get(parameter.name).required = true;
  }
  let running = null;
  stop.addEventListener("click", () => running?.abort());
  form.addEventListener("submit", async (event) => {
    event.preventDefault();
    running?.abort();
    const mine = running = new AbortController();
    const began = performance.now();
    stop.hidden = output.hidden = false;
    output.textContent = "";
    status.textContent = "Waiting for the answer";
    try {
      const answer = await send(operation, values(), body?.value, keyOf(), mine.signal, (text) => {
        if (running === mine) output.textContent = text;
      });
      if (running !== mine) return;
      const seconds = ((performance.now() - began) / 1000).toFixed(2);
      status.textContent = `${answer.status} in ${seconds} s` +
        (answer.requestId ? `, request ${answer.requestId}` : "");
    } catch (error) {
      if (running !== mine) return;
      status.textContent = mine.signal.aborted ? "Stopped" : `No answer: ${error.message}`;
    }
    running = null;
    stop.hidden = true;
  });
  return form;
}

// The section of an operation. Its content is made when it is opened.
export function operationSection(document, operation, keyOf) {
  const summary = [h("span", { class: `method ${operation.method}` }, operation.method.toUpperCase()),
                   " ", h("code", {}, operation.path), " ",
                   h("span", { class: "summary" }, operation.summary)];
  const section = folded("operation", summary, () => [h("div", { class: "inside" },
    ...operation.description ? [h("p", {}, ...prose(operation.description))] : [],
    h("p", { class: "type" }, operation.key === "none" ? "Needs no key." :
      `Needs the ${operation.key}${operation.key === "API key" ? ", if the server has keys" : ""}.`,
      " ", h("a", { href: `#${operation.id}` }, "Link to this operation")),
    ...parameterList(document, operation),
    ...operation.bodySchema ? titled(`Body: ${operation.bodyType}`,
      ...schemaRows(document, operation.bodySchema, [nameOfReference(operation.bodySchema)])) : [],
    ...tryIt(operation, keyOf),
    ...answerList(document, operation))]);
  section.id = operation.id;
  return section;
}
