// Who captures, and who delivers; an operator pauses and resumes the reading of the log, and pipelines.

import { confirm } from "./dialogs.js";
import { button, byId, el, show, sign } from "./dom.js";
import { context, send } from "./dumps.js";
import { bytes, clock, pausedText, span } from "./format.js";

let source = null; // as it was told last

export function showProcesses(found) {
  ({ source } = found);
  const key = [found.leader, found.since_ms, found.epoch, found.zone, found.standbys, found.standby_zones, source.paused_by, source.paused_ms, found.pipelines, context.operator];
  show(byId("processes-list"), key, () => [
    card("Capture", found, "leads", LOG, source),
    found.pipelines.map((each) => card(`Pipeline ${each.pipeline}`, each, "delivers", pipeline(each.pipeline), each)),
  ]);
}

function card(title, each, does, what, pause) {
  const paused = pause.paused_ms !== null;
  const sense = paused ? "warning" : each.leader ? "ok" : "critical";
  const verb = paused ? "resume" : "pause";
  return el("div", { class: "row-card" }, sign(sense),
    el("div", {}, el("strong", {}, title),
      el("div", {}, each.leader ? `${each.leader} ${does}` : `nobody ${does}`),
      each.leader && el("div", { class: "muted" }, [
        each.since_ms ? `since ${clock(each.since_ms)}` : "", each.epoch ? `epoch ${each.epoch}` : "", each.zone,
      ].filter(Boolean).join(", ")),
      each.standbys.map((name, n) => el("div", { class: "muted" },
        `${name} stands by${each.standby_zones[n] ? ` in zone ${each.standby_zones[n]}` : ""}`)),
      paused ? el("div", { class: "paused-note" }, `${what.said} is ${pausedText(pause)}`) : null,
      context.operator ? el("div", { class: "actions" }, button(`${what[verb].label}…`, () => steer(verb, what),
        { class: "small", "data-focus": `${verb}-${what.name}`, "data-act": `${verb}-${what.name}` })) : null));
}

const LOG = {
  name: "log", said: "The log", body: (verb) => ({ action: `${verb}-log` }),
  pause: { label: "Pause the log", text: () => [
    "Nothing more is read of the source's log until somebody resumes it, also after a restart. Dumps wait, too; outputs get what is captured already.",
    `The source keeps its log meanwhile${kept()}. Nothing resumes it by itself.`,
  ] },
  resume: { label: "Resume the log", text: () => ["Capture reads on where it stands. What was written meanwhile is captured once, in order; dumps that wait for it go on."] },
};

const pipeline = (name) => ({
  name: `pipeline-${name}`, said: "It", body: (verb) => ({ action: `${verb}-pipeline`, pipeline: name }),
  pause: { label: `Pause ${name}`, text: () => [
    "Nothing more comes to its outputs until somebody resumes it, also after a restart. The batch under way ends first.",
    "Capture goes on: it is the event log that keeps what the outputs lack, on its disk, not the source.",
  ] },
  resume: { label: `Resume ${name}`, text: () => ["Its outputs get what they lack, in order."] },
});

// How much that is, and for how long, as far as it is known.
function kept() {
  const parts = [
    source.retained_bytes === null ? "" : `${bytes(source.retained_bytes)} now`,
    source.spare_bytes === null ? "" : `room for ${bytes(Math.max(0, source.spare_bytes))} more`,
    source.lost_in_s === null ? "" : `it removes what capture needs in ${span(source.lost_in_s)}`,
  ].filter(Boolean);
  return parts.length ? ` (${parts.join(", ")})` : "";
}

function steer(verb, what) {
  const { site } = context;
  const { label, text } = what[verb];
  confirm(`${label}?`, text().map((each) => el("p", {}, each)), label, () => send(site, what.body(verb),
    ({ paused }) => verb === "resume" ? "Resumed." : paused?.by ? `Paused by ${paused.by}.` : "Paused."));
}
