// Who did what, and the configuration in effect.

import { get } from "./api.js";
import { byId, el } from "./dom.js";
import { context } from "./dumps.js";
import { clock } from "./format.js";

const VERBS = {
  "execute-snapshot": "dumped", "stop-snapshot": "cancelled", "pause-snapshot": "paused",
  "resume-snapshot": "resumed", "set-dump-options": "changed limits:",
};
const RESULTS = { refused: "refused", given: "no capture has acted on it at once" };
const SHOWN = 8;

export async function audit(site) {
  try {
    const rows = await get(`web/sites/${site}/audit`);
    if (site !== context.site) return;
    const line = (each) => el("li", {}, el("div", {}, el("strong", {}, each.name), ` ${VERBS[each.action] ?? each.action} ${each.about}`),
      el("div", { class: "muted small-text" }, `${clock(each.at_ms)} · ${each.role} from ${each.address}${RESULTS[each.result] ? ` · ${RESULTS[each.result]}` : ""}`));
    byId("audit-list").replaceChildren(rows.length ? el("ul", { class: "plain" }, rows.slice(0, SHOWN).map(line)) : el("p", { class: "muted" }, "Nobody has done anything on this page."),
      rows.length > SHOWN ? el("details", { class: "more" }, el("summary", {}, `${rows.length - SHOWN} before`), el("ul", { class: "plain" }, rows.slice(SHOWN).map(line))) : "");
  } catch {
    // what can't be had now stays as it is
  }
}

export async function settings(site) {
  try {
    const rows = await get(`web/sites/${site}/settings`);
    if (site !== context.site) return;
    byId("settings-list").replaceChildren(el("table", { class: "settings" }, el("tbody", {}, rows.map((each) => el("tr", {},
      el("th", { scope: "row" }, each.option), el("td", {}, each.value))))));
  } catch (error) {
    if (site === context.site) byId("settings-list").replaceChildren(el("p", { class: "muted" }, error.message));
  }
}
