// What was captured and how late source and outputs were; operations by table; windows of chunks.

import { got } from "./api.js";
import { button, byId, el, sign, svg } from "./dom.js";
import { clock, count, rate, span } from "./format.js";

const HEIGHT = 132;
const LEFT = 46;
const LETTER = 7;
const BOTTOM = 20;
const TOP = 8;
const SERIES = 5;
const EVERY_MS = 10000;
const ACTIVITY_EVERY_MS = 60000;
const SOON_MS = 5000;

let range = "recent";
let found = null;
let site = 0;
let timer = 0;
let activityTimer = 0;
let activitySoon = 0;

const resized = new ResizeObserver(() => draw());

export function start(number) {
  site = number;
  found = null;
  clearInterval(timer);
  timer = setInterval(load, EVERY_MS);
  clearInterval(activityTimer);
  activityTimer = setInterval(loadActivity, ACTIVITY_EVERY_MS);
  showActivity(null);
  byId("history-range").replaceChildren(...[["recent", "30 min"], ["day", "24 h"]].map(([value, label]) => button(label, () => {
    range = value;
    for (const each of byId("history-range").children) each.setAttribute("aria-pressed", String(each.dataset.range === value));
    draw();
  }, { class: "chip", "data-range": value, "aria-pressed": String(range === value) })));
  byId("charts").replaceChildren();
  resized.observe(byId("charts"));
  load();
  loadActivity();
}

export function stop() {
  clearInterval(timer);
  clearInterval(activityTimer);
  clearTimeout(activitySoon);
}

async function load() {
  const asked = site;
  const answer = await got(`web/sites/${asked}/history`); // the page itself shows a missing answer
  if (answer === null || asked !== site) return;
  found = answer;
  draw();
}

function draw() {
  if (!found) return;
  const points = found[range];
  const names = [...new Set(points.flatMap((each) => Object.keys(each.outputs)))].slice(0, SERIES - 1);
  const throughput = [{ name: "captured", of: (each) => (each.over_s > 0 ? each.records / each.over_s : null) }];
  const lag = [{ name: "capture", of: (each) => each.lag_s }, ...names.map((name) => ({ name, of: (each) => each.outputs[name] ?? null }))];
  byId("charts").replaceChildren(
    chart("Records a second", points, throughput, rate),
    chart("Late by", points, lag, span));
}

function chart(title, points, series, said) {
  const box = byId("charts");
  const columns = getComputedStyle(box).gridTemplateColumns.split(" ").length;
  const width = Math.max(240, Math.floor((box.clientWidth - (columns - 1) * 20) / columns));
  const caption = el("span", { class: "reading muted" });
  const legend = el("span", { class: "legend" }, series.length > 1 ? series.map((each, place) => el("span", { class: `key s${place}` },
    key(place), each.name)) : []);
  const head = el("figcaption", {}, el("strong", {}, title), legend, caption);
  if (points.length < 2) return el("figure", {}, head, el("p", { class: "muted empty" }, "Nothing is remembered yet."));
  const values = series.map((each) => points.map(each.of));
  const highest = nice(Math.max(1e-9, ...values.flat().filter((each) => each !== null)));
  const left = Math.max(LEFT, 12 + LETTER * Math.max(...[0, 0.5, 1].map((part) => said(highest * part).length)));
  const [from, to] = [points[0].at_s, points.at(-1).at_s];
  const x = (at) => left + ((at - from) / Math.max(1, to - from)) * (width - left - 6);
  const y = (value) => TOP + (1 - value / highest) * (HEIGHT - TOP - BOTTOM);
  const latest = values.map((each) => each.findLast((value) => value !== null) ?? null);
  const summary = `${title}: ${series.map((each, place) => `${each.name} ${said(latest[place])} at last, ${said(Math.max(0, ...values[place].filter((v) => v !== null)))} at most`).join("; ")}`;
  const cursor = svg("line", { class: "cursor", y1: TOP, y2: HEIGHT - BOTTOM, x1: -9, x2: -9 });
  const drawing = svg("svg", { width, height: HEIGHT, viewBox: `0 0 ${width} ${HEIGHT}`, role: "img", "aria-label": summary },
    [0, 0.5, 1].map((part) => [
      svg("line", { class: "grid", x1: left, x2: width - 6, y1: y(highest * part), y2: y(highest * part) }),
      svg("text", { class: "axis", x: left - 6, y: y(highest * part) + 4, "text-anchor": "end" }, said(highest * part))]),
    [from, (from + to) / 2, to].map((at, place) => svg("text", {
      class: "axis", x: x(at), y: HEIGHT - 5, "text-anchor": ["start", "middle", "end"][place],
    }, clock(at * 1000).slice(-8, to - from > 600 ? -3 : undefined))),
    values.map((each, place) => [place === 0 && series.length === 1 ? svg("path", { class: "area", d: path(points, each, x, y, y(0)) }) : null,
      svg("path", { class: `line s${place}`, d: path(points, each, x, y) })]),
    cursor);
  const read = (event) => {
    const at = from + ((event.clientX - drawing.getBoundingClientRect().left - left) / Math.max(1, width - left - 6)) * (to - from);
    let nearest = 0;
    points.forEach((each, place) => {
      if (Math.abs(each.at_s - at) < Math.abs(points[nearest].at_s - at)) nearest = place;
    });
    const where = x(points[nearest].at_s);
    cursor.setAttribute("x1", where);
    cursor.setAttribute("x2", where);
    caption.textContent = `${clock(points[nearest].at_s * 1000)}: ${series.map((each, place) => `${series.length > 1 ? `${each.name} ` : ""}${said(values[place][nearest])}`).join(", ")}`;
  };
  drawing.addEventListener("pointermove", read);
  drawing.addEventListener("pointerdown", read);
  caption.textContent = series.length === 1 ? `now ${said(latest[0])}` : "";
  return el("figure", {}, head, drawing);
}

const KINDS = [["insert", "inserts"], ["update", "updates"], ["delete", "deletes"], ["dump", "dumped rows"]];
const BUCKET_S = 300;
const WHOLE = 0.9;
const DAY_S = 86400;
const SPARK = { width: 320, height: 44, top: 10 };

async function loadActivity() {
  const asked = site;
  const answer = await got(`web/sites/${asked}/activity`);
  if (asked !== site) return;
  clearTimeout(activitySoon);
  if (!answer) activitySoon = setTimeout(loadActivity, SOON_MS); // the server may have started just now
  if (answer) showActivity(answer);
}

function key(place) {
  return svg("svg", { width: 22, height: 8, "aria-hidden": "true" }, svg("line", { x1: 1, x2: 21, y1: 4, y2: 4, class: `line s${place}` }));
}

// The activity log: a line of its own pattern for each kind, the sums as numbers, and each sudden drop in words.
function showActivity(found) {
  if (!found?.at_s.length) {
    byId("activity-legend").replaceChildren();
    byId("activity-list").replaceChildren(el("p", { class: "muted" }, "Nothing is remembered yet: capture notes it every five minutes."));
    return;
  }
  const last = found.at_s.at(-1) + BUCKET_S;
  const first = Math.max(found.at_s[0], last - DAY_S);
  const places = new Map(found.at_s.map((at, place) => [at, place]));
  const points = [];
  for (let at = first; at < last; at += BUCKET_S) points.push({ at_s: at, place: places.get(at) });
  const known = (point, since) => point.place !== undefined && point.at_s >= since && found.seen_s[point.place] >= WHOLE * BUCKET_S;
  const row = (name, counts, since, drops) => {
    const kinds = KINDS.map((_, kind) => points.map((point) => (known(point, since) ? counts[point.place]?.[kind] ?? 0 : null)));
    const sums = KINDS.map((_, kind) => points.reduce((sum, point) => sum + (counts[point.place]?.[kind] ?? 0), 0));
    const fell = drops.map((each) => `${each.kind}s fell from ${rate(each.before_per_min)} to ${rate(each.then_per_min)} a minute at ${clock(each.at_ms)}${each.until_ms ? `, and came back at ${clock(each.until_ms)}` : ", and have not come back"}`);
    return el("tr", {},
      el("th", { scope: "row" }, el("span", { class: "name" }, name), fell.map((said) => el("div", { class: "drop-said" }, sign("warning"), ` ${said}`))),
      el("td", {}, spark(name, points, kinds, drops, first, last, fell)),
      sums.map((sum, kind) => el("td", { class: "number", "data-label": KINDS[kind][1] }, count(sum))));
  };
  byId("activity-legend").replaceChildren(`${clock(first * 1000)} to ${clock(last * 1000)}`,
    ...KINDS.map(([, label], place) => el("span", { class: `key s${place}` }, key(place), label)), el("span", { class: "key" }, "▼ sudden drop"));
  byId("activity-list").replaceChildren(el("table", { class: "activity" },
    el("thead", {}, el("tr", {}, ["Table", "In five minutes each"].map((label) => el("th", { scope: "col" }, label)),
      KINDS.map(([, label]) => el("th", { scope: "col", class: "number" }, label)))),
    el("tbody", {}, found.tables.map((each) => row(each.table, each.counts, each.since_s, found.drops.filter((drop) => drop.table === each.table))),
      found.rest.some(Boolean) ? row("all others", found.rest, 0, []) : null)));
}

function spark(name, points, kinds, drops, first, last, fell) {
  const { width, height, top } = SPARK;
  const highest = Math.max(1, ...kinds.flat().filter((each) => each !== null));
  const x = (at) => ((at - first) / (last - first)) * (width - 4) + 2;
  const y = (value) => top + (1 - value / highest) * (height - top - 2);
  return svg("svg", { viewBox: `0 0 ${width} ${height}`, width, height, role: "img", "aria-label": `${name}: at most ${count(highest)} operations of a kind in five minutes. ${fell.join("; ") || "No sudden drop"}.` },
    svg("line", { class: "grid", x1: 0, x2: width, y1: height - 2, y2: height - 2 }),
    kinds.map((values, place) => (values.some((each) => each) ? svg("path", { class: `line s${place}`, d: path(points, values, x, y) }) : null)),
    drops.filter((each) => each.at_ms / 1000 >= first).map((each) => [
      svg("line", { class: "drop-mark", x1: x(each.at_ms / 1000), x2: x(each.at_ms / 1000), y1: top, y2: height - 2 }),
      svg("text", { class: "drop-sign", x: x(each.at_ms / 1000), y: 9, "text-anchor": "middle" }, "▼")]));
}

const LANE_ENDS = { durable: "done", closed: "done", voided: "void, is read again", failed: "failed" };
const LANE = 240;

// Windows between watermarks: solid while its rows are read, striped while it waits for its high watermark and the disk.
export function lanes(rows, nowMs) {
  const from = Math.min(...rows.map((each) => each.begun_ms));
  const x = (at) => ((Math.max(at, from) - from) / Math.max(1000, nowMs - from)) * (LANE - 4) + 2;
  return el("table", { class: "lanes" }, el("tbody", {}, rows.map((each) => {
    const end = x(each.ended_ms ?? nowMs);
    const read = each.read_ms === null ? end : Math.min(end, x(each.read_ms));
    const begin = x(each.begun_ms);
    const said = each.ended_ms !== null ? `${LANE_ENDS[each.end] ?? each.end}: ${Math.round(each.rows).toLocaleString("en")} rows${each.superseded ? `, ${each.superseded} superseded` : ""}`
      : each.read_ms === null ? "reads" : each.written ? "is written" : "waits for its high watermark";
    return el("tr", {}, el("th", { scope: "row", class: "name" }, each.table),
      el("td", {}, svg("svg", { viewBox: `0 0 ${LANE} 14`, width: "100%", height: 14, preserveAspectRatio: "none", "aria-hidden": "true" },
        svg("rect", { class: "lane-read", x: begin, y: 3, width: Math.max(1.5, read - begin), height: 8 }),
        svg("line", { class: "lane-wait", x1: read, x2: Math.max(read, end), y1: 7, y2: 7 }),
        each.ended_ms === null ? null : svg("rect", { class: each.end === "voided" || each.end === "failed" ? "lane-void" : "lane-end", x: end - 1, y: 1, width: 2.5, height: 12 }))),
      el("td", { class: "muted" }, said));
  })));
}

// A gap for missing data: a line over it would be wrong.
function path(points, values, x, y, floor) {
  let text = "";
  let start = null;
  points.forEach((each, place) => {
    if (values[place] === null) {
      if (floor !== undefined && start !== null) text += `L${x(points[place - 1].at_s).toFixed(1)} ${floor}Z`;
      start = null;
      return;
    }
    const spot = `${x(each.at_s).toFixed(1)} ${y(values[place]).toFixed(1)}`;
    if (start === null) {
      start = x(each.at_s).toFixed(1);
      text += floor === undefined ? `M${spot}` : `M${start} ${floor}L${spot}`;
    } else text += `L${spot}`;
  });
  if (floor !== undefined && start !== null) text += `L${x(points.at(-1).at_s).toFixed(1)} ${floor}Z`;
  return text;
}

function nice(value) {
  if (value <= 1) return 1;
  const power = 10 ** Math.floor(Math.log10(value));
  return [1, 2, 5, 10].find((each) => each * power >= value) * power;
}
