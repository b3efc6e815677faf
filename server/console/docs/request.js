// Requests to this server from the page, and the same as curl.

const kShownBytes = 1 << 20; // of an answer; more would stall the page

// Path and query of an operation with these values; empty query values are left out.
export function urlOf(operation, values) {
  const path = operation.path.replace(/\{([^}]+)\}/g,
    (whole, name) => values[name] ? encodeURIComponent(values[name]) : whole);
  const query = new URLSearchParams();
  for (const parameter of operation.parameters) {
    if (parameter.in === "query" && values[parameter.name]) {
      query.set(parameter.name, values[parameter.name]);
    }
  }
  return query.size ? `${path}?${query}` : path;
}

const quoted = (text) => `'${text.replaceAll("'", `'\\''`)}'`;

// The key is a variable of the shell, never the key itself.
export function curlOf(operation, values, body) {
  const words = [`curl ${quoted(location.origin + urlOf(operation, values))}`];
  if (operation.method !== "get" && operation.method !== "post") {
    words.push(`-X ${operation.method.toUpperCase()}`);
  }
  if (operation.method === "post" && body === undefined) words.push("-X POST");
  if (operation.key === "API key") words.push(`-H "Authorization: Bearer $TANDEM_API_KEY"`);
  if (operation.key === "admin key") words.push(`-H "Authorization: Bearer $TANDEM_ADMIN_KEY"`);
  if (operation.bodyType === "multipart/form-data") {
    words.push("-F purpose=fine-tune", "-F file=@FILE");
  } else if (body !== undefined) {
    words.push(`-H 'Content-Type: application/json'`, `-d ${quoted(body)}`);
  }
  return words.join(" \\\n  ");
}

// Sends the request and calls onText with all text so far, again as a stream grows.
// Returns {status, type, requestId}. Throws what fetch throws; an aborted signal is one cause.
export async function send(operation, values, body, key, signal, onText) {
  const headers = {};
  if (key) headers.Authorization = `Bearer ${key}`;
  if (body !== undefined) headers["Content-Type"] = "application/json";
  const response = await fetch(urlOf(operation, values), {
    method: operation.method.toUpperCase(), headers, body, signal, cache: "no-store",
    credentials: "omit", redirect: "error",
  });
  const type = response.headers.get("content-type") ?? "";
  const text = await readText(response, onText);
  if (type.startsWith("application/json") && text.length < kShownBytes) onText(indented(text));
  return { status: response.status, type, requestId: response.headers.get("x-request-id") ?? "" };
}

async function readText(response, onText) {
  const reader = response.body.getReader();
  const decoder = new TextDecoder();
  let text = "";
  for (;;) {
    const { done, value } = await reader.read();
    text += done ? decoder.decode() : decoder.decode(value, { stream: true });
    if (text.length > kShownBytes) {
      await reader.cancel();
      text = `${text.slice(0, kShownBytes)}\n… cut: the answer has more than 1 MiB`;
      onText(text);
      return text;
    }
    onText(text);
    if (done) return text;
  }
}

function indented(text) {
  try {
    return JSON.stringify(JSON.parse(text), null, 2);
  } catch {
    return text;
  }
}
