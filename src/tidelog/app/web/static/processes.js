// The leaders of capture and pipelines; an operator pauses and resumes the log, and pipelines.

import { confirm } from "./dialogs.js";
import { button, byId, el, show, sign } from "./dom.js";
import { context, send } from "./dumps.js";
import { bytes, clock, pausedText, span } from "./format.js";

let source = null; // as last reported

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
      context.operator ? el("div", { class: "actions" }, button(`${what[verb].label}…`, () => control(verb, what),
        { class: "small", "data-focus": `${verb}-${what.name}`, "data-act": `${verb}-${what.name}` })) : null));
}

const LOG = {
  name: "log", said: "The log", part: "log", data: {},
  pause: { label: "Pause the log", text: () => [
    "The source's log is not read until an operator resumes it, also after a restart. Dumps wait, too; outputs get what is already captured.",
    `The source keeps its log during the pause${kept()}. Nothing resumes it by itself.`,
  ] },
  resume: { label: "Resume the log", text: () => ["Capture resumes at its position. Changes of the pause are captured once, in order; dumps that wait for it resume."] },
};

const pipeline = (name) => ({
  name: `pipeline-${name}`, said: "It", part: "pipeline", data: { pipeline: name },
  pause: { label: `Pause ${name}`, text: () => [
    "Its outputs get nothing until an operator resumes it, also after a restart. The current batch ends first.",
    "Capture runs on: the event log, not the source, keeps what the outputs still need, on its disk.",
  ] },
  resume: { label: `Resume ${name}`, text: () => ["Its outputs get all pending records, in order."] },
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

function control(verb, what) {
  const { site } = context;
  const { label, text } = what[verb];
  confirm(`${label}?`, text().map((each) => el("p", {}, each)), label, () => send(site, `${verb}-${what.part}`, what.data,
    ({ paused }) => verb === "resume" ? "Resumed." : paused?.by ? `Paused by ${paused.by}.` : "Paused."));
}
