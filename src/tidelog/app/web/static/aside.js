// The results of verify and check, the audit list, and the effective configuration.

import { get, got, post } from "./api.js";
import { button, byId, el, show, sign, toast } from "./dom.js";
import { context } from "./dumps.js";
import { breakable, clock, count, plural } from "./format.js";
import { remedy } from "./summary.js";

const VERBS = {
  "execute-snapshot": "dumped", "stop-snapshot": "cancelled", "pause-snapshot": "paused",
  "resume-snapshot": "resumed", "set-dump-options": "changed limits:",
  "pause-log": "paused", "resume-log": "resumed", "pause-pipeline": "paused", "resume-pipeline": "resumed",
};
const RESULTS = { refused: "refused", given: "no capture has handled it at once" };
const SHOWN = 8;

export async function audit(site) {
  const rows = await got(`web/sites/${site}/audit`);
  if (rows === null || site !== context.site) return;
  const line = (each) => el("li", {}, el("div", {}, el("strong", {}, each.name), ` ${VERBS[each.action] ?? each.action} ${each.about}`),
    el("div", { class: "muted small-text" }, `${clock(each.at_ms)} · ${each.role} from ${each.address}${RESULTS[each.result] ? ` · ${RESULTS[each.result]}` : ""}`));
  byId("audit-list").replaceChildren(rows.length ? el("ul", { class: "plain" }, rows.slice(0, SHOWN).map(line)) : el("p", { class: "muted" }, "Nobody has done anything on this page."),
    rows.length > SHOWN ? el("details", { class: "more" }, el("summary", {}, `${rows.length - SHOWN} before`), el("ul", { class: "plain" }, rows.slice(SHOWN).map(line))) : "");
}

const RESULTS_EVERY_MS = 30000;
const CHECKING_EVERY_MS = 1000;
let timer = 0;

export async function results(site) {
  clearTimeout(timer);
  let found = null;
  try {
    found = await get(`web/sites/${site}/results`);
  } catch (error) {
    if (error.status === 401) return;
    // what can't be had now stays as it is
  }
  if (site !== context.site) return;
  timer = setTimeout(() => results(site), found?.check.running ? CHECKING_EVERY_MS : RESULTS_EVERY_MS);
  if (found) showResults(site, found);
}

export function stop() {
  clearTimeout(timer);
}

function showResults(site, { verified, check, commands }) {
  show(byId("results-actions"), [site, check.running, context.operator], () => context.operator ? button(check.running ? "Checks…" : "Check now", async () => {
    try {
      await post(`web/sites/${site}/check`);
    } catch (error) {
      toast(error.message, "warning");
    }
    results(site);
  }, { class: "small", "data-act": "check", disabled: check.running, "data-focus": "check" }) : []);
  show(byId("results-list"), [verified, check], () => [verifyResult(verified, commands), checkResult(check, commands)]);
}

const AMISS = ["missing", "surplus", "different", "unsettled"];

function verifyResult(found, commands) {
  if (!found) return el("p", { class: "muted" }, `Verify has compared nothing yet: ${commands.verify}`);
  const differ = found.differ.length;
  const leftOut = found.left_out?.length ?? 0;
  const line = (each) => el("tr", {}, el("td", {}, sign(each.equal ? "ok" : each.left_out ? "warning" : "critical")), el("td", { class: "name" }, breakable(each.copy)),
    el("td", {}, each.equal ? "equal" : AMISS.filter((name) => each[name]).map((name) => `${count(each[name])} ${name}`).join(", ") || (each.left_out ? "left out" : "differs"), each.note ? el("div", { class: "muted" }, each.note) : null),
    el("td", { class: "muted" }, clock(each.at_ms)));
  return el("div", { class: "row-card", id: "verified" }, sign(differ ? "critical" : "ok"),
    el("div", {}, el("strong", {}, differ ? `${plural(differ, "copy").replace("copys", "copies")} differed` : "Copies were equal"),
      el("div", { class: "muted" }, `${leftOut ? `${leftOut} left out; ` : ""}${plural(found.compared, "copy").replace("copys", "copies")} compared at ${clock(found.at_ms)}`),
      found.copies?.length ? el("details", { class: "more" }, el("summary", {}, "Each copy"), el("div", { class: "scroll" }, el("table", {}, el("tbody", {}, found.copies.slice(0, 300).map(line))))) : null));
}

const LEVELS = { error: "critical", warning: "warning", ok: "ok" };

function checkResult({ found, trouble }, commands) {
  const failed = trouble ? el("p", { class: "trouble" }, `The check ended: ${trouble}`) : null;
  if (!found) return [failed, el("p", { class: "muted" }, `Nothing was checked yet: ${commands.check}`)];
  const { error, warning, ok } = found.counts;
  const line = (each) => el("li", {}, el("div", { class: "state" }, sign(LEVELS[each.level] ?? "info"), each.check), el("div", {}, each.message), each.fix && each.level !== "ok" ? remedy(each.fix) : null);
  const wrong = found.findings.filter((each) => each.level !== "ok");
  const well = found.findings.filter((each) => each.level === "ok");
  return [failed, el("div", { class: "row-card", id: "checked" }, sign(error ? "critical" : warning ? "warning" : "ok"),
    el("div", {}, el("strong", {}, `${plural(error + warning + ok, "check")}: ${error ? `${error} to fix` : warning ? plural(warning, "warning") : "all in order"}`),
      el("div", { class: "muted" }, `checked at ${clock(found.at_ms)}${found.by === "capture" ? ` by capture: the source alone. Of all: ${commands.check}` : ""}`),
      wrong.length ? el("ul", { class: "plain" }, wrong.map(line)) : null,
      well.length ? el("details", { class: "more" }, el("summary", {}, `${well.length} in order`), el("ul", { class: "plain" }, well.map(line))) : null))];
}

export async function settings(site) {
  let rows = [];
  let trouble = null;
  try {
    rows = await get(`web/sites/${site}/settings`);
  } catch (error) {
    trouble = error.message;
  }
  if (site !== context.site) return;
  byId("settings-list").replaceChildren(trouble !== null ? el("p", { class: "muted" }, trouble)
    : el("table", { class: "settings" }, el("tbody", {}, rows.map((each) => el("tr", {}, el("th", { scope: "row" }, each.option), el("td", {}, each.value))))));
}
