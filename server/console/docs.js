// The page at /docs: renders /openapi.json of this server.

import { groupsOf, searchTextOf } from "./docs/document.js";
import { operationSection, prose } from "./docs/operation.js";
import { h } from "./lib/dom.js";

const kKeyName = "tandem.key"; // of the session storage; the console uses it too

const search = document.getElementById("search");
const key = document.getElementById("key");
const nav = document.getElementById("operations");
const main = document.getElementById("content");

key.value = sessionStorage.getItem(kKeyName) ?? "";
key.addEventListener("input", () => {
  if (key.value) sessionStorage.setItem(kKeyName, key.value);
  else sessionStorage.removeItem(kKeyName);
});

// Opens the operation that the address names.
function openTarget() {
  const target = document.getElementById(decodeURIComponent(location.hash.slice(1)));
  if (!target?.matches("details.operation")) return;
  target.open = true;
  target.scrollIntoView({ block: "start" });
  target.querySelector("summary").focus({ preventScroll: true });
}

// Shows the operations that hold every word of the search.
function filter(rows, none) {
  const words = search.value.toLowerCase().split(/\s+/).filter(Boolean);
  for (const row of rows) {
    row.link.hidden = row.section.hidden = !words.every((word) => row.text.includes(word));
  }
  for (const group of nav.querySelectorAll("li.group")) {
    group.hidden = !group.querySelector("li:not([hidden])");
  }
  for (const group of main.querySelectorAll("section")) {
    group.hidden = !group.querySelector("details.operation:not([hidden])");
  }
  none.hidden = rows.some((row) => !row.link.hidden);
}

// "/" goes to the search, arrows walk the list of operations, Escape clears the search.
function onKey(event, rows) {
  const isTyping = event.target.matches("input, textarea, select");
  if (event.key === "/" && !isTyping && !event.ctrlKey && !event.metaKey && !event.altKey) {
    event.preventDefault();
    search.focus();
    return;
  }
  if (event.key === "Escape" && event.target === search) {
    search.value = "";
    search.dispatchEvent(new Event("input"));
    return;
  }
  const shown = rows.filter((row) => !row.link.hidden).map((row) => row.link.firstElementChild);
  const at = shown.indexOf(document.activeElement);
  if (event.target !== search && at < 0) return;
  if (event.key === "Enter" && event.target === search) {
    event.preventDefault();
    shown[0]?.click();
  } else if (event.key === "ArrowDown") {
    event.preventDefault();
    shown[Math.min(at + 1, shown.length - 1)]?.focus();
  } else if (event.key === "ArrowUp") {
    event.preventDefault();
    (at > 0 ? shown[at - 1] : search).focus();
  }
}

function render(api) {
  const rows = [];
  const navGroups = [];
  const sections = [];
  for (const group of groupsOf(api)) {
    const links = [];
    const parts = [];
    for (const operation of group.operations) {
      const section = operationSection(api, operation, () => key.value);
      const link = h("li", {}, h("a", { href: `#${operation.id}`, title: operation.summary },
        h("span", { class: `method ${operation.method}` }, operation.method.toUpperCase()), " ",
        operation.path));
      rows.push({ link, section, text: searchTextOf(api, operation) });
      links.push(link);
      parts.push(section);
    }
    navGroups.push(h("li", { class: "group" }, h("h2", {}, group.name), h("ul", {}, ...links)));
    sections.push(h("section", { "aria-label": group.name }, h("h3", {}, group.name),
      h("p", {}, group.description), ...parts));
  }
  const none = h("p", { role: "status", hidden: true }, "No operation has these words.");
  nav.replaceChildren(h("ul", {}, ...navGroups));
  main.replaceChildren(h("h2", {}, `${api.info.title} API`), h("p", {}, ...prose(api.info.description)),
    none, ...sections);
  search.addEventListener("input", () => filter(rows, none));
  document.addEventListener("keydown", (event) => onKey(event, rows));
  window.addEventListener("hashchange", openTarget);
  filter(rows, none);
  openTarget();
}

async function start() {
  try {
    const response = await fetch("/openapi.json");
    if (!response.ok) throw new Error(`the server answered ${response.status}`);
    render(await response.json());
  } catch (error) {
    main.replaceChildren(h("p", { role: "alert" }, `Cannot load /openapi.json: ${error.message}`));
  }
}

start();
