// Builds elements. Children are nodes or text; text always becomes a text node, never markup.

const SVG = 'http://www.w3.org/2000/svg';

function apply(el, props) {
  for (const [name, value] of Object.entries(props ?? {})) {
    if (value === undefined || value === null || value === false) continue;
    if (name.startsWith('on')) el.addEventListener(name.slice(2), value);
    else if (name === 'style') for (const [key, v] of Object.entries(value)) el.style.setProperty(key, v);
    else if (name === 'value' || name === 'checked' || name === 'selected') el[name] = value;
    else el.setAttribute(name, value === true ? '' : value);
  }
}

export function add(el, ...children) {
  for (const child of children.flat(Infinity)) {
    if (child === undefined || child === null || child === false) continue;
    el.append(child instanceof Node ? child : document.createTextNode(String(child)));
  }
  return el;
}

// h('button.primary', {onclick: f, 'aria-label': 'Send'}, 'Send'): tag and classes, attributes, children.
export function h(tag, props, ...children) {
  const [name, ...classes] = tag.split('.');
  const el = document.createElement(name);
  if (classes.length) el.className = classes.join(' ');
  apply(el, props);
  return add(el, ...children);
}

export function svg(tag, props, ...children) {
  const el = document.createElementNS(SVG, tag);
  apply(el, props);
  return add(el, ...children);
}

// Replaces all children.
export function fill(el, ...children) {
  el.replaceChildren();
  return add(el, ...children);
}

let lastId = 0;
export const newId = (prefix = 'x') => `${prefix}${++lastId}`;

// A labelled control: field('Seed', h('input', {type: 'number'}), 'Empty: random').
export function field(label, control, hint) {
  control.id ||= newId('f');
  const note = hint && h('small', {id: `${control.id}-hint`}, hint);
  if (note) control.setAttribute('aria-describedby', note.id);
  return h('div.field', null, h('label', {for: control.id}, label), control, note);
}

// A button. While the promise of its action runs it ignores clicks; it stays focusable.
export function button(text, onclick, props = {}) {
  const el = h('button', {type: 'button', ...props}, text);
  el.addEventListener('click', async (event) => {
    if (el.getAttribute('aria-disabled') === 'true') return;
    const result = onclick(event);
    if (!(result instanceof Promise)) return;
    el.setAttribute('aria-disabled', 'true');
    try { await result; } finally { el.removeAttribute('aria-disabled'); }
  });
  return el;
}

// What a screen shows when it has nothing: a title, one sentence, and what to do.
export const empty = (title, text, ...actions) =>
  h('div.empty', null, h('h2', null, title), text && h('p', null, text), actions.length ? h('p', null, actions) : null);
