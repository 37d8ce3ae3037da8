// The first screen: verdict, how late, is the log safe, what is wrong.

import { button, byId, clear, el, show, sign, toast } from "./dom.js";
import { bytes, clock, count, pausedText, plural, rate, span, spanParts } from "./format.js";
import { help } from "./help.js";

const LATE_S = 300;
const SHOWN_TILES = 4;

export function showVerdict(site, found) {
  const facts = [];
  if (found.leader) {
    facts.push(`${found.leader} captures${found.since_ms ? ` since ${clock(found.since_ms)}` : ""}`);
  }
  facts.push(found.standbys.length ? `${plural(found.standbys.length, "process").replace("processs", "processes")} standing by` : "nobody stands by");
  if (found.at_ms) facts.push(`state of ${clock(found.at_ms)}`);
  show(byId("verdict"), [found.severity, found.verdict, found.leader, found.standbys, site.name], () => [
    sign(found.severity),
    el("div", {}, el("h1", {}, found.verdict), el("p", {}, `${site.name} · ${site.kind} · `, el("span", { id: "facts" }))),
  ]);
  byId("verdict").className = `verdict ${found.severity}`;
  byId("facts")?.replaceChildren(facts.join(" · "));
  document.title = `${found.severity === "ok" ? "" : "(!) "}${site.name} – Tidelog`;
}

// Nothing of a source that was shown before: it would be taken for what is shown now.
export function forget() {
  for (const id of ["verdict", "tiles", "answers", "problems-list", "dumps-actions", "dumps-list", "outputs-list", "processes-list", "results-actions", "results-list", "audit-list", "settings-list"]) clear(byId(id));
  byId("verdict").className = "verdict";
  byId("problems").hidden = true;
  byId("answers").hidden = true;
  byId("outputs-title").textContent = "Outputs";
  before = null;
  perSecond = null;
}

export function showTrouble(site) {
  show(byId("verdict"), ["trouble", site.name], () => [
    sign("critical"),
    el("div", {}, el("h1", {}, "State store or event log can't be read."), el("p", {}, `${site.name} · ${site.kind}`)),
  ]);
  byId("verdict").className = "verdict critical";
  document.title = `(!) ${site.name} – Tidelog`;
}

function late(seconds, error) {
  if (error) return "critical";
  if (seconds === null) return "info";
  return seconds >= LATE_S ? "warning" : "ok";
}

const WORST_FIRST = ["critical", "warning", "info", "ok"];

// By how late it is, and what is wrong with it.
function outputSeverity(output, problems) {
  const about = problems.filter((each) => each.about === `${output.pipeline}/${output.output}`).map((each) => each.severity);
  return WORST_FIRST.find((each) => [late(output.lag_s, output.error), ...about].includes(each));
}

function tile(title, value, unit, note, severity, extra = null) {
  return el("div", { class: `tile ${severity}` },
    el("div", { class: "tile-title" }, title, sign(severity)),
    el("div", { class: "tile-value" }, value, unit ? el("small", {}, ` ${unit}`) : ""),
    extra, el("div", { class: "tile-note" }, note));
}

function sourceTile(source) {
  const [value, unit] = spanParts(source.lag_s);
  const behind = source.lag_bytes ? `${bytes(source.lag_bytes)} behind, ` : "";
  const note = source.error ? "the database does not answer" : source.paused_ms ? `${behind}the log is ${pausedText(source)}` : `${behind}at ${source.position ?? "an unknown position"}`;
  const title = source.silent_s ? "Capture is late by up to" : "Capture is late by";
  return tile(title, value, unit, note, late(source.lag_s, source.error));
}

const LOG_IN_DANGER = ["log-nearly-lost", "log-room-small", "log-fills-disk"];

function logTile(source, problems, answer) {
  const worst = problems.find((each) => LOG_IN_DANGER.includes(each.kind));
  if (source.retained_bytes === null && source.lost_in_s === null) {
    return tile("Log kept for capture", answer?.brief ?? "–", "", answer?.text ?? "not known", answer?.severity ?? "info");
  }
  const severity = worst ? worst.severity : "ok";
  const lost = source.lost_in_s;
  const [value, unit] = lost === null ? [worst ? "at risk" : "safe", ""] : spanParts(lost);
  const kept = source.retained_bytes === null ? "" : `${bytes(source.retained_bytes)} kept`;
  const room = source.spare_bytes === null ? (kept ? ", no limit" : "") : `, ${bytes(Math.max(0, source.spare_bytes))} to spare`;
  const share = source.spare_bytes === null || source.retained_bytes === null ? null
    : Math.min(1, source.retained_bytes / Math.max(1, source.retained_bytes + source.spare_bytes));
  const meter = share === null ? null : el("meter", {
    min: 0, max: 1, high: 0.8, optimum: 0, value: String(share), "aria-label": "Share of the room in use",
  });
  const title = lost === null ? "Log kept for capture" : "Log kept for capture lasts";
  return tile(title, value, unit, `${kept}${room}` || "by the server's time limit", severity, meter);
}

function fails(output, problems) {
  return problems.some((each) => each.kind === "output-fails" && each.about === `${output.pipeline}/${output.output}`);
}

function outputTile(output, problems) {
  const [value, unit] = output.error ? ["stopped", ""] : spanParts(output.lag_s);
  const note = [
    output.behind_records ? `${plural(output.behind_records, "record")} to deliver` : "has everything",
    fails(output, problems) ? "fails" : "", output.rejected ? `${count(output.rejected)} in dead letters` : "",
  ].filter(Boolean).join("; ");
  return tile(`${output.output} is late by`, value, unit, note, outputSeverity(output, problems));
}

let before = null;
let perSecond = null;

function speed(found) {
  if (before && before.since_ms === found.since_ms && found.at_ms > before.at_ms) {
    const now = ((found.records - before.records) * 1000) / (found.at_ms - before.at_ms);
    perSecond = perSecond === null || Math.abs(perSecond) < 1 ? now : perSecond * 0.6 + now * 0.4;
  } else if (!before || before.since_ms !== found.since_ms) perSecond = null;
  before = found;
  return perSecond;
}

export function showTiles(found) {
  const shown = found.outputs.slice(0, SHOWN_TILES);
  const more = found.outputs.length - shown.length;
  const persec = speed(found);
  const parts = [
    sourceTile(found.source),
    ...shown.map((each) => outputTile(each, found.problems)),
    logTile(found.source, found.problems, found.answers.find((each) => each.name === "log")),
    tile("Captures", rate(persec), "records/s", `${count(found.records)} since it leads${found.throttled ? "; dumps slowed down" : ""}`, "ok"),
  ];
  show(byId("tiles"), [found.source, found.outputs.map((o) => [o.output, o.lag_s, o.behind_records, o.error, o.rejected]), rate(persec), found.records, found.problems.map((p) => [p.kind, p.about, p.severity])], () => parts);
  byId("outputs-title").textContent = more > 0 ? `Outputs (${found.outputs.length})` : "Outputs";
}

const ASKED = { log: "Log", tables: "Tables", dump: "Dump", paused: "Paused", verify: "Verify" };

export function showAnswers(found) {
  byId("answers").hidden = !found.answers.length;
  show(byId("answers"), found.answers, () => el("dl", {}, found.answers.map((each) => [
    el("dt", {}, sign(each.severity), ` ${ASKED[each.name] ?? each.name}`),
    el("dd", {}, each.at_ms ? `${each.text} ${clock(each.at_ms)}` : each.text),
  ])));
}

export function showProblems(found) {
  byId("problems").hidden = !found.problems.length;
  const title = found.problems.every((each) => each.severity === "info") ? "Notes" : "What is wrong";
  byId("problems-title").textContent = found.problems.length > 1 ? `${title} (${count(found.problems.length)})` : title;
  show(byId("problems-list"), found.problems, () => grouped(found.problems));
}

const OF_A_KIND = 5;

// Of a thousand of one kind a few are shown, so that none hides the others.
function grouped(problems) {
  const kinds = new Map();
  for (const each of problems) kinds.set(each.kind, [...(kinds.get(each.kind) ?? []), each]);
  const found = [];
  for (const [, each] of kinds) {
    found.push(...each.slice(0, OF_A_KIND).map(problem));
    if (each.length > OF_A_KIND) {
      found.push(el("details", { class: "more" }, el("summary", {}, `${count(each.length - OF_A_KIND)} more like this`),
        each.slice(OF_A_KIND, 200).map(problem)));
    }
  }
  return found;
}

function problem(each) {
  return el("article", { class: `problem ${each.severity}` }, sign(each.severity),
    el("div", {},
      el("p", { class: "sentence" }, each.sentence),
      each.remedy ? remedy(each.remedy) : null,
      button("What this means", () => help(each.page), { class: "link" })));
}

const COMMAND = /^(--|tidelog |pip |chmod |export |(ALTER|CALL|COMMENT|CREATE|DO|DROP|GRANT|INSERT|RESET|REVOKE|SELECT|SET|UPDATE)\s)/;

// Sentences as sentences; only what is to be run has a box, and a button that copies it.
export function remedy(text) {
  const parts = [];
  for (const line of text.split("\n").filter(Boolean)) {
    const last = parts.at(-1);
    const goesOn = last?.command && /^\s|^[()]/.test(line);
    const isCommand = goesOn || COMMAND.test(line);
    if (last && last.command === isCommand) last.lines.push(line);
    else parts.push({ command: isCommand, lines: [line] });
  }
  return parts.map(({ command, lines }) => command ? commands(lines.join("\n")) : el("p", { class: "muted advice" }, lines.join(" ")));
}

function commands(text) {
  const copy = navigator.clipboard ? button("Copy", async () => {
    try {
      await navigator.clipboard.writeText(text);
    } catch {
      toast("The browser does not let this page copy; select the text instead.", "warning");
      return;
    }
    toast("Copied.");
  }, { class: "small copy" }) : null;
  // An option is not torn apart at its hyphens where the line ends.
  const words = text.split(/(\s+)/).map((each) => each.trim() ? el("span", { class: "word" }, each) : each);
  return el("div", { class: "remedy" }, el("pre", {}, words), copy);
}

/** Tables of one cause together, as `by_cause` of overview/output_problems.py. */
function byCause(messages) {
  const found = new Map();
  for (const [table, message] of Object.entries(messages).sort()) {
    const cause = message.replaceAll(table, "").split(". ")[0];
    if (!found.has(cause)) found.set(cause, [[], message]);
    found.get(cause)[0].push(table);
  }
  return [...found.values()];
}

function keylessText(tables, text) {
  const also = tables.length > 1 ? `; so for ${tables.slice(1).join(", ")}` : "";
  return `${text.split(". ")[0]}${also}. tidelog check prints how to give a key`;
}

export function showOutputs(found) {
  const engines = found.engines || [];
  show(byId("outputs-list"), [found.outputs, engines, found.problems.map((p) => [p.about, p.severity])], () => found.outputs.length || engines.length
    ? found.outputs.map((each) => el("div", { class: "row-card" },
      sign(outputSeverity(each, found.problems)),
      el("div", {},
        el("strong", {}, each.output), el("span", { class: "muted" }, ` of ${each.pipeline}`),
        el("div", {}, each.error ? `stopped: ${each.error}` : each.behind_records
          ? `${span(each.lag_s)} late, ${count(each.behind_records)} records to deliver` : "has everything"),
        each.begun_ms ? el("div", {}, `a batch of ${plural(each.begun_records, "record")} is under way since ${clock(each.begun_ms)}`) : null,
        each.committed_ms ? el("div", {}, `last batch at ${clock(each.committed_ms)}${each.batch_records ? `: ${plural(each.batch_records, "record")} in ${span(each.batch_s)}, ${rate(each.records_per_s)} a second` : ", without records"}`) : null,
        each.rejected ? el("div", {}, sign("warning"), ` ${plural(each.rejected, "record")} in dead letters, the last at ${clock(each.rejected_ms)}`) : null,
        ...byCause(each.keyless || {}).map(([tables, text]) => el("div", { class: "muted" }, keylessText(tables, text))),
        fails(each, found.problems) ? el("div", { class: "muted" }, `failed last at ${clock(each.last_error_ms)}: ${each.last_error}`) : null,
        el("div", { class: "muted" }, [`reported at ${clock(each.noted_ms)}`, each.offset ? `up to offset ${count(each.offset)}` : ""].filter(Boolean).join("; "))))).concat(engines.map((each) => el("div", { class: "row-card" },
      sign(found.problems.some((p) => p.kind === "engine-abandoned" && p.about === each.name) ? "warning" : "ok"),
      el("div", {},
        el("strong", {}, each.name), el("span", { class: "muted" }, ", an engine in a program"),
        el("div", {}, each.behind_records ? `${span(each.lag_s)} behind, ${count(each.behind_records)} records to do` : "has done everything"),
        el("div", { class: "muted" }, each.owners.length ? `${each.owners.join(", ")} ${each.owners.length === 1 ? "runs" : "run"} it` : `last heard of at ${clock(Math.max(each.noted_ms, each.seen_ms || 0))}`)))))
    : el("p", { class: "muted" }, "No output has delivered anything yet."));
}
