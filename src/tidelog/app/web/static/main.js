// The page: the session, the chosen source, and the events of the server.

import { post, session, unless } from "./api.js";
import { audit, results, settings, stop as stopResults } from "./aside.js";
import * as charts from "./charts.js";
import { close as closeDialog } from "./dialogs.js";
import { button, byId, el, show, sign } from "./dom.js";
import { context, showDumps } from "./dumps.js";
import { clock } from "./format.js";
import { Live } from "./live.js";
import { login } from "./login.js";
import { showProcesses } from "./processes.js";
import { forget, showAnswers, showOutputs, showProblems, showTiles, showTrouble, showVerdict } from "./summary.js";
import * as tables from "./tables.js";

let who = null;
let site = 0;
const latest = new Map();

const live = new Live({
  overview(news) {
    // Problems that are as they were are not sent again.
    if (news.overview) news.overview.problems ??= latest.get(news.site)?.overview?.problems ?? [];
    latest.set(news.site, news);
    if (news.site === site) draw(news);
    showSites();
  },
  tables: (news) => tables.take(news),
  ended: () => leave("The session has ended; log in again."),
  heard() {
    byId("silence").hidden = true;
    byId("page").classList.remove("old");
    showLive();
  },
  silent(since) {
    byId("silence").hidden = false;
    byId("silence").textContent = who?.full
      ? `${who.full} on this server: close some. Then this one continues by itself.`
      : `The server does not answer since ${clock(since)}. The data below is of that time; the page retries.`;
    byId("page").classList.add("old");
    showLive(true);
  },
  async mayGoOn() {
    try {
      who = await session();
      return !who.full;
    } catch (error) {
      unless(error);
      if (who) who.full = "";
      if (error.status === 401) leave("Log in again.");
      return false;
    }
  },
});

function draw({ overview, trouble }) {
  context.trouble = !overview;
  byId("page").classList.toggle("unread", context.trouble);
  if (!overview) {
    showTrouble(who.sites[site]);
    byId("silence").hidden = false;
    byId("silence").textContent = `State store or event log can't be read: ${trouble}`;
    byId("page").classList.add("old");
    return;
  }
  byId("silence").hidden = true;
  byId("page").classList.remove("old");
  showVerdict(who.sites[site], overview);
  showTiles(overview);
  showAnswers(overview);
  showProblems(overview);
  showDumps(overview);
  showOutputs(overview);
  showProcesses(overview);
}

function showLive(lost = false) {
  show(byId("live"), lost, () => [el("span", { class: `dot ${lost ? "lost" : "on"}` }), lost ? "no answer" : "live"]);
}

function showSites() {
  const box = byId("sites");
  box.hidden = who.sites.length < 2;
  if (box.hidden) return;
  const severity = (number) => latest.get(number)?.overview?.severity ?? "critical";
  show(box, [site, who.sites, who.sites.map((_, number) => severity(number))], () => who.sites.map((each, number) =>
    button([sign(severity(number)), each.name], () => choose(number), {
      class: "site", "aria-current": number === site ? "page" : undefined, "data-focus": `site-${number}`, title: latest.get(number)?.overview?.verdict,
    })));
}

function choose(number) {
  site = number;
  location.hash = number ? `source-${number}` : "";
  context.site = number;
  context.trouble = true; // until it is known that it is not
  byId("silence").hidden = true;
  byId("page").classList.remove("old", "unread");
  forget();
  tables.forget();
  charts.start(number);
  audit(number);
  results(number);
  byId("settings-details").open = false;
  if (latest.has(number)) draw(latest.get(number));
  live.open(number);
  showSites();
}

function showUser() {
  byId("user").replaceChildren(
    el("span", { class: "who" }, who.name || who.role, el("small", {}, who.name ? ` ${who.role}` : "")),
    button("Log out", async () => {
      try {
        await post("web/logout");
      } finally {
        leave("");
      }
    }, { class: "small" }));
}

function leave(why) {
  live.stop();
  charts.stop();
  stopResults();
  closeDialog();
  who = null;
  byId("user").replaceChildren();
  byId("live").replaceChildren();
  byId("live").shownKey = null;
  byId("sites").hidden = true;
  byId("silence").hidden = true;
  login(enter, why);
}

async function enter() {
  who = await session();
  byId("login").hidden = true;
  byId("page").hidden = false;
  context.operator = who.role === "operator";
  context.changed = () => setTimeout(() => audit(site), 300);
  byId("foot").textContent = `Tidelog ${who.version}. Times are of this browser's zone.`;
  showUser();
  showLive();
  const asked = Number(/^#source-(\d{1,4})$/.exec(location.hash)?.[1] ?? 0);
  choose(asked < who.sites.length ? asked : 0);
}

byId("settings-details").addEventListener("toggle", (event) => {
  if (event.target.open) settings(site);
});
document.addEventListener("keydown", (event) => {
  if (event.key === "/" && !byId("page").hidden && !byId("dialog").open && !/INPUT|TEXTAREA/.test(event.target.tagName)) {
    event.preventDefault();
    byId("tables-search").focus();
  }
});

try {
  await enter();
} catch (error) {
  login(enter, error.status === 401 ? "" : error.message);
  unless(error);
}
