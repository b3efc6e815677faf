// Conversations as data: a tree of messages for each lane, and their storage in the browser.

const STORE = 'tandem.chats';
const MAX_CHATS = 40;
const MAX_CHARS = 1_500_000;  // of all stored conversations as JSON; browsers allow about 5 million

// A lane talks to one model. `nodes[i].id === i`; `leaf` is the last message shown, -1: none.
export const newLane = (model = '') => ({model, nodes: [], leaf: -1});
export const newChat = (model) => ({
  id: crypto.getRandomValues(new Uint32Array(2)).join('-'), at: Date.now(), system: '', params: {}, lanes: [newLane(model)]});

// Messages from the first to `id`.
export function path(lane, id = lane.leaf) {
  const out = [];
  for (let node = lane.nodes[id]; node; node = lane.nodes[node.parent]) out.unshift(node);
  return out;
}

// Adds a message below `parent` (-1: a first one) and shows it.
export function addNode(lane, parent, node) {
  const added = {...node, id: lane.nodes.length, parent};
  lane.nodes.push(added);
  lane.leaf = added.id;
  return added;
}

export const siblings = (lane, node) => lane.nodes.filter((other) => other.parent === node.parent);

// Shows the branch of `node`, down to its newest message.
export function choose(lane, node) {
  let id = node.id;
  for (;;) {
    const next = lane.nodes.filter((other) => other.parent === id).at(-1);
    if (!next) break;
    id = next.id;
  }
  lane.leaf = id;
}

// A second lane with the same messages up to the last one of the user, which it then answers.
export function besideOf(lane, model) {
  const copy = newLane(model);
  const shared = path(lane);
  while (shared.length && shared.at(-1).role !== 'user') shared.pop();
  for (const {role, content, model} of shared) addNode(copy, copy.leaf, {role, content, ...(model ? {model} : {})});
  return copy;
}

export function titleOf(chat) {
  const first = chat.lanes[0].nodes.find((node) => node.role === 'user');
  return first?.content.trim().slice(0, 80) || 'New chat';
}

// The messages of a request, from a path.
export function messagesOf(chat, nodes) {
  const messages = nodes.filter((node) => !node.error || node.content).map(({role, content, calls}) => calls?.length
    ? {role, content: content || null, tool_calls: calls.map((call, i) => ({id: call.id || `call_${i}`, type: 'function', function: {name: call.name, arguments: call.arguments}}))}
    : {role, content});
  return chat.system ? [{role: 'system', content: chat.system}, ...messages] : messages;
}

// The body of POST /v1/chat/completions.
export function bodyOf(chat, lane, nodes) {
  const {logprobs = true, ...params} = chat.params;
  return {
    model: lane.model, messages: messagesOf(chat, nodes), stream: true, stream_options: {include_usage: true},
    ...(logprobs ? {logprobs: true, top_logprobs: 5} : {}), ...params};
}

// What the server's answer with this body is rendered from.
export function renderBodyOf({model, messages, tools}) {
  return {model, messages, ...(tools ? {tools} : {})};
}

// Newest first. What another version or a foreign hand wrote is dropped.
export function loadChats() {
  try {
    return JSON.parse(localStorage.getItem(STORE) ?? '[]').filter((chat) => chat.id && Array.isArray(chat.lanes) && chat.lanes.length &&
      chat.lanes.every((lane) => Array.isArray(lane.nodes)));
  } catch {
    return [];
  }
}

// Keeps as many of the newest conversations as fit. False: not even the first one fits.
export function saveChats(chats) {
  const kept = chats.filter((chat) => chat.lanes.some((lane) => lane.nodes.length)).slice(0, MAX_CHATS);
  for (; kept.length; kept.pop()) {
    const text = JSON.stringify(kept);
    if (text.length > MAX_CHARS) continue;
    try { localStorage.setItem(STORE, text); return true; } catch { /* full: drop the oldest */ }
  }
  localStorage.removeItem(STORE);
  return chats.length === 0 || !chats[0].lanes.some((lane) => lane.nodes.length);
}
