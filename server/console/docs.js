// The page at /docs: renders openapi.json of this server.

import {h, fill} from './lib/dom.js';
import {key, request, takeKeyFromAddress} from './lib/api.js';
import {groupsOf, searchTextOf} from './docs/document.js';
import {operationSection, prose} from './docs/operation.js';

const search = document.getElementById('search');
const keyInput = document.getElementById('key');
const nav = document.getElementById('operations');
const main = document.getElementById('content');

// Opens the operation that the address names.
function openTarget() {
  const target = document.getElementById(location.hash.slice(1));
  if (!target?.matches('details.operation')) return;
  target.open = true;
  target.scrollIntoView({block: 'start'});
  target.querySelector('summary').focus({preventScroll: true});
}

// Shows the operations that hold every word of the search.
function filter(rows, none) {
  const words = search.value.toLowerCase().split(/\s+/).filter(Boolean);
  for (const row of rows) {
    row.link.hidden = row.section.hidden = !words.every((word) => row.text.includes(word));
  }
  for (const group of document.querySelectorAll('.group')) {
    group.hidden = !group.querySelector('li.link:not([hidden]), details.operation:not([hidden])');
  }
  none.hidden = rows.some((row) => !row.link.hidden);
}

// "/" goes to the search, arrows walk the operations, Enter opens the first, Escape clears the search.
function onKey(event, rows) {
  const isTyping = event.target.matches?.('input, textarea, select');
  if (event.key === '/' && !isTyping && !event.ctrlKey && !event.metaKey && !event.altKey) {
    event.preventDefault();
    return search.focus();
  }
  const shown = rows.filter((row) => !row.link.hidden).map((row) => row.link.firstElementChild);
  const at = shown.indexOf(document.activeElement);
  if (event.target !== search && at < 0) return;
  if (event.key === 'Escape') {
    search.value = '';
    search.dispatchEvent(new Event('input'));
    search.focus();
  } else if (event.key === 'Enter' && event.target === search) {
    shown[0]?.click();
  } else if (event.key === 'ArrowDown') {
    shown[Math.min(at + 1, shown.length - 1)]?.focus();
  } else if (event.key === 'ArrowUp') {
    (at > 0 ? shown[at - 1] : search).focus();
  } else {
    return;
  }
  if (event.target === search || event.key !== 'Enter') event.preventDefault();
}

function render(api) {
  const rows = [];
  const method = (operation) => h(`span.method.${operation.method}`, null, operation.method.toUpperCase());
  const groups = groupsOf(api);
  for (const group of groups) {
    for (const operation of group.operations) {
      const link = h('li.link', null, h('a', {href: `#${operation.id}`, title: operation.summary},
        method(operation), ' ', operation.path));
      rows.push({group, link, section: operationSection(api, operation), text: searchTextOf(api, operation)});
    }
  }
  const none = h('p', {role: 'status'}, 'No operation has these words.');
  const of = (group, part) => rows.filter((row) => row.group === group).map((row) => row[part]);
  fill(nav, h('ul', null, groups.map((group) =>
    h('li.group', null, h('h2', null, group.name), h('ul', null, of(group, 'link'))))));
  fill(main, h('h2', null, `${api.info.title} API`), h('p', null, prose(api.info.description)), none,
    groups.map((group) => h('section.group', {'aria-label': group.name},
      h('h3', null, group.name), h('p', null, group.description), of(group, 'section'))));
  search.addEventListener('input', () => filter(rows, none));
  document.addEventListener('keydown', (event) => onKey(event, rows));
  addEventListener('hashchange', openTarget);
  filter(rows, none);
  openTarget();
}

takeKeyFromAddress();
const theme = localStorage.getItem('tandem.theme');
if (theme === 'light' || theme === 'dark') document.documentElement.dataset.theme = theme;
keyInput.value = key.get();
keyInput.addEventListener('input', () => key.set(keyInput.value.trim()));
request('GET', '/openapi.json').then(render, (error) => {
  fill(main, h('p', {role: 'alert'}, `openapi.json cannot be loaded: ${error.message}.`));
});
