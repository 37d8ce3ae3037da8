// A thousand tables, found by typing.

import { get } from "./api.js";
import { open } from "./dialogs.js";
import { button, byId, el, isPressed, sign } from "./dom.js";
import { begin, context } from "./dumps.js";
import { breakable, clock, count, plural } from "./format.js";
import { remedy } from "./summary.js";

const SEVERITY = {
  refused: "warning", "inserts only": "warning", "dump failed": "warning",
  dumping: "info", "dump waits": "info", captured: "ok",
};
const ORDER = Object.keys(SEVERITY);
const AT_FIRST = 300;

const known = new Map();
const rows = new Map();
let wanted = "";
let state = "";
let limit = AT_FIRST;
let body = null;

export function forget() {
  known.clear();
  rows.clear();
  limit = AT_FIRST;
  build();
}

export function build() {
  const search = el("input", {
    type: "search", id: "tables-search", placeholder: "Filter, e.g. orders", "aria-label": "Filter tables", value: wanted,
    oninput: () => {
      wanted = search.value.toLowerCase();
      limit = AT_FIRST;
      draw();
    },
  });
  byId("tables-filter").replaceChildren(search, el("span", { id: "tables-states", class: "chips" }));
  body = el("tbody", {});
  byId("tables-list").replaceChildren(
    el("table", { class: "tables" }, el("thead", {}, el("tr", {},
      el("th", { scope: "col" }, "Table"), el("th", { scope: "col" }, "State"),
      el("th", { scope: "col", class: "number" }, "Records in the log"), el("th", { scope: "col" }, "Last record"),
      el("th", { scope: "col" }, "Last dump"))), body),
    el("p", { class: "muted", id: "tables-count" }));
}

export function take({ first, changed, gone }) {
  if (first) {
    known.clear();
    rows.clear();
  }
  for (const name of gone) {
    known.delete(name);
    rows.delete(name);
  }
  for (const table of changed) {
    known.set(table.table, table);
    rows.delete(table.table);
  }
  drawUnpressed();
}

function drawUnpressed() {
  if (isPressed(byId("tables"))) setTimeout(drawUnpressed, 200);
  else draw();
}

function row(table) {
  return el("tr", { "data-table": table.table },
    el("th", { scope: "row" }, button(breakable(table.table), () => details(table.table), { class: "link name", "data-focus": table.table })),
    el("td", {}, el("span", { class: "state" }, sign(SEVERITY[table.state] ?? "info"), table.state),
      table.reason ? el("div", { class: "reason" }, table.reason) : null),
    el("td", { class: "number", "data-label": "Records in the log" }, count(table.records)),
    el("td", { "data-label": "Last record" }, clock(table.last_record_ms)),
    el("td", { "data-label": "Last dump" }, table.dumped_ms ? `${clock(table.dumped_ms)} (${plural(table.dumped_rows, "row")})` : "–"));
}

function draw() {
  const all = [...known.values()];
  const found = all.filter((each) => (!state || each.state === state) && (!wanted || each.table.toLowerCase().includes(wanted)));
  found.sort((a, b) => ORDER.indexOf(a.state) - ORDER.indexOf(b.state) || a.table.localeCompare(b.table));
  const focused = body.contains(document.activeElement) ? document.activeElement.dataset.focus : null;
  const shown = found.slice(0, limit).map((each) => {
    if (!rows.has(each.table)) rows.set(each.table, row(each));
    return rows.get(each.table);
  });
  body.replaceChildren(...shown);
  if (focused) body.querySelector(`[data-focus="${CSS.escape(focused)}"]`)?.focus();
  const rest = found.length - shown.length;
  byId("tables-count").replaceChildren(
    all.length === 0 ? "No table is captured yet."
      : found.length === all.length ? plural(all.length, "table") : `${count(found.length)} of ${plural(all.length, "table")}`,
    rest > 0 ? ["; ", button(`show ${count(rest)} more`, () => {
      limit = Infinity;
      draw();
    }, { class: "link" })][1] : "");
  chips(all);
}

function chips(all) {
  const counts = new Map();
  for (const each of all) counts.set(each.state, (counts.get(each.state) ?? 0) + 1);
  const chip = (value, label) => button(label, () => {
    state = state === value ? "" : value;
    draw();
  }, { class: "chip", "aria-pressed": String(state === value), "data-focus": `chip-${value}` });
  const box = byId("tables-states");
  const focused = box.contains(document.activeElement) ? document.activeElement.dataset.focus : null;
  if (state && !counts.has(state)) counts.set(state, 0);
  box.replaceChildren(...(counts.size > 1 || state ? ORDER.filter((each) => counts.has(each)).map((each) => chip(each, `${each} ${count(counts.get(each))}`)) : []));
  if (focused) box.querySelector(`[data-focus="${CSS.escape(focused)}"]`)?.focus();
}

async function details(name) {
  const table = known.get(name);
  const { site } = context;
  const history = el("div", {}, el("p", { class: "muted" }, "…"));
  open(name, [
    el("p", { class: "state" }, sign(SEVERITY[table.state] ?? "info"), table.state),
    table.reason ? el("p", {}, table.reason) : null, table.remedy ? remedy(table.remedy) : null,
    el("h3", {}, "Schema history"), history,
  ], context.operator && !context.trouble && table.state !== "refused" ? [button("Dump this table…", () => begin([name], site), { class: "primary", "data-act": "dump-this" })] : []);
  let found;
  try {
    found = await get(`web/sites/${site}/schema?table=${encodeURIComponent(name)}`);
  } catch (error) {
    history.replaceChildren(el("p", { class: "muted" }, error.message));
    return;
  }
  history.replaceChildren(...versions(found.tables[0].versions));
}

function versions(found) {
  return found.map((version, place) => {
    const older = new Map(place ? found[place - 1].columns.map((each) => [each.name, each.type]) : []);
    const now = new Set(version.columns.map((each) => each.name));
    const news = (column) => !place ? "" : !older.has(column.name) ? "new"
      : older.get(column.name) === column.type ? "" : `was ${older.get(column.name)}`;
    const gone = [...older.keys()].filter((name) => !now.has(name));
    return el("details", { open: place === found.length - 1 },
      el("summary", {}, `Version ${version.version}${place === found.length - 1 ? ", the newest" : ""}`),
      el("div", { class: "scroll" }, el("table", {}, el("tbody", {},
        version.columns.map((column) => el("tr", {},
          el("td", { class: "name" }, breakable(column.name)), el("td", {}, column.type),
          el("td", { class: "muted" }, version.key.includes(column.name) ? "key" : ""),
          el("td", { class: "muted" }, news(column)))),
        gone.map((name) => el("tr", { class: "muted" }, el("td", { class: "name" }, name), el("td", {}, "gone"), el("td"), el("td")))))));
  }).reverse();
}
