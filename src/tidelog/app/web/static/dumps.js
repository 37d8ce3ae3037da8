// Dumps that run, and what an operator does with them: each is said twice before it is done.

import { post } from "./api.js";
import { lanes } from "./charts.js";
import { close, confirm, isOpen, open } from "./dialogs.js";
import { button, byId, el, show, toast } from "./dom.js";
import { breakable, bytes, count, pausedText, plural, span } from "./format.js";

export const context = { site: 0, operator: false, trouble: false, changed: () => {} };

// `site`: that of the click that began it, whichever is shown when it is confirmed.
export async function send(site, type, data, done) {
  const found = await post(`web/sites/${site}/commands`, { type, data });
  if (found.state === "waiting") toast("Sent. No capture has handled it yet; the next leader will.", "warning");
  else toast(done(found.details));
  context.changed();
}

export function showDumps(found) {
  const running = found.dumps;
  show(byId("dumps-actions"), [context.operator, running.length > 1, found.options], () => context.operator ? [
    running.length > 1 ? button("Pause all", () => control("pause", null), { "data-focus": "pause-all" }) : null,
    running.length > 1 ? button("Resume all", () => control("resume", null), { "data-focus": "resume-all" }) : null,
    button("Limits…", () => limits(found.options), { "data-focus": "limits" }),
    button("Dump…", () => begin([]), { class: "primary", "data-focus": "dump" }),
  ] : []);
  show(byId("dumps-list"), [running, found.throttled, context.operator], () => running.length
    ? [running.map(card), el("div", { id: "lanes" }), found.throttled ? el("p", { class: "muted" }, `Slowed down: ${found.throttled}`) : null]
    : el("p", { class: "muted" }, "No dump runs."));
  const box = byId("lanes");
  if (box) show(box, found.lanes, () => found.lanes.length ? [el("h3", {}, "Windows between watermarks"), lanes(found.lanes, found.at_ms)] : []);
}

function card(dump) {
  const share = dump.share === null ? null : Math.min(0.99, dump.share);
  const paused = dump.status === "paused";
  const by = dump.held ? "blocked by capture" : paused ? pausedText(dump) : dump.status;
  const facts = [
    `${count(dump.tables_done)} of ${plural(dump.tables, "table")}`,
    `${count(dump.rows)}${dump.estimated_rows ? ` of about ${count(dump.estimated_rows)}` : ""} rows`,
    dump.failed ? `${plural(dump.failed, "table")} failed` : "",
    paused ? "" : dump.left_s === null ? "time left not known yet" : `about ${span(dump.left_s)} left`,
  ];
  return el("article", { class: `dump ${dump.status}` },
    el("div", { class: "dump-head" },
      el("strong", { class: "name" }, dump.dump_id),
      el("span", { class: `badge ${dump.status}` }, by),
      el("span", { class: "muted" }, [dump.mode, dump.reason].filter(Boolean).join(" · ")),
      context.operator ? el("span", { class: "actions" },
        paused && !dump.held ? button("Resume", () => control("resume", dump.dump_id), { "data-focus": `resume-${dump.dump_id}` })
          : button("Pause", () => control("pause", dump.dump_id), { "data-focus": `pause-${dump.dump_id}` }),
        button("Cancel", () => control("cancel", dump.dump_id), { class: "danger", "data-focus": `cancel-${dump.dump_id}` })) : null),
    el("div", { class: "bar-line" },
      el("progress", { max: 1, value: share === null ? undefined : String(share), "aria-label": `Progress of dump ${dump.dump_id}` }),
      el("span", { class: "percent" }, share === null ? "" : `${Math.floor(share * 100)} %`)),
    el("div", { class: "facts" }, facts.filter(Boolean).join(" · ")),
    dump.held ? el("div", { class: "muted small-text" }, dump.held) : null,
    dump.reading.length ? el("div", { class: "muted small-text" }, "reads ",
      dump.reading.slice(0, 6).map((each, place) => [place ? ", " : "", breakable(each.table),
        each.estimated_rows ? ` (${Math.min(99, Math.floor((100 * each.rows) / each.estimated_rows))}%)` : ""]),
      dump.reading.length > 6 ? ` and ${dump.reading.length - 6} more` : "") : null);
}

const SAYS = {
  pause: ["pause-snapshot", "Pause", "No more chunks are read until it is resumed, also after a restart. The log is read on.", "Paused."],
  resume: ["resume-snapshot", "Resume", "Reading resumes where it stopped.", "Resumed."],
  cancel: ["stop-snapshot", "Cancel", "What is read already stays; the rest is not read. This can't be taken back.", "Cancelled."],
};

function control(action, dump) {
  const [type, verb, text, done] = SAYS[action];
  const about = dump === null ? "all dumps" : `dump ${dump}`;
  const { site } = context;
  confirm(`${verb} ${about}?`, el("p", {}, text), `${verb} ${dump === null ? "all" : "it"}`,
    () => send(site, type, { dump_id: dump }, () => done), action === "cancel" ? "danger" : "");
}

// First what is to be read, then what that costs, then the dump.
export function begin(chosen, site = context.site) {
  const names = el("textarea", {
    id: "dump-tables", rows: 4, spellcheck: "false", placeholder: "public.orders\npublic.*", value: chosen.join("\n"),
  });
  const trouble = el("p", { class: "trouble", role: "alert" });
  const next = button("Show the plan", async () => {
    const tables = names.value.split("\n").map((each) => each.trim()).filter(Boolean);
    next.disabled = true;
    next.textContent = "Looks at the tables…";
    trouble.textContent = "";
    let plan;
    try {
      plan = await post(`web/sites/${site}/plan`, { tables }, 300000);
    } catch (error) {
      trouble.textContent = error.message;
      next.disabled = false;
      next.textContent = "Show the plan";
      return;
    }
    if (isOpen(mine)) planned(site, tables, plan);
  }, { class: "primary", "data-act": "plan" });
  const mine = open("Dump tables", [
    el("label", { for: "dump-tables" }, "Tables, one on each line; * matches any text. Empty: all captured tables."),
    names, el("p", { class: "muted" }, "The tables are read in chunks, without locks, while the log flows on. The plan reads a small sample of each."), trouble,
  ], [button("Leave it", close), next]);
  names.focus();
}

function planned(site, tables, plan) {
  const { total } = plan;
  const rows = plan.tables.slice(0, 100).map((each) => el("tr", {},
    el("td", { class: "name" }, breakable(each.table)), el("td", { class: "number" }, count(each.rows)),
    el("td", { class: "number" }, bytes(each.bytes)), el("td", { class: "number" }, count(each.chunks)),
    el("td", { class: "number" }, each.seconds === null ? "–" : span(each.seconds))));
  const content = [
    el("p", {}, el("strong", {}, `${plural(total.tables, "table")}, about ${count(total.rows)} rows and ${bytes(total.bytes)}, in ${plural(total.chunks, "chunk")}`),
      total.seconds === null ? "." : `: at least ${span(total.seconds)}.`),
    el("div", { class: "scroll plan" }, el("table", {},
      el("thead", {}, el("tr", {}, ["Table", "Rows", "Size", "Chunks", "Time"].map((each, place) => el("th", { class: place ? "number" : "" }, each)))),
      el("tbody", {}, rows))),
    plan.tables.length > 100 ? el("p", { class: "muted" }, `and ${count(plan.tables.length - 100)} more`) : null,
    plan.not_dumped.length ? el("div", {}, el("p", { class: "trouble" }, `${plural(plan.not_dumped.length, "table")} can't be dumped:`),
      el("ul", {}, plan.not_dumped.slice(0, 20).map((each) => el("li", {}, `${each.table}: ${each.reason}`)))) : null,
  ];
  confirm("Start this dump?", content, "Start the dump",
    () => send(site, "execute-snapshot", { tables }, (details) => `Dump ${details.dump_id ?? ""} begins.`));
}

const LIMITS = [
  ["rows_per_second", "Rows a second", "over all dumps; 0: no limit"],
  ["parallelism", "Chunks at once", "a connection for each"],
  ["chunk_rows", "Rows of a chunk", "that one SELECT reads"],
  ["delay_ms", "Pause between chunks", "ms"],
  ["max_lag_bytes", "Slow down when capture lags by", "MiB; 0: never"],
  ["max_replica_lag_ms", "Slow down when a replica lags by", "ms; 0: never"],
  ["max_select_ms", "Slow down when a SELECT takes", "ms; 0: never"],
  ["max_commit_delay_ms", "Slow down when a commit takes longer by", "ms; 0: never"],
];

// A field of bytes is filled in in MiB.
const MIB = 1 << 20;
const scale = (name) => name.endsWith("_bytes") ? MIB : 1;
const shown = (name, value) => name.endsWith("_bytes") ? bytes(value) : name.endsWith("_ms") ? `${count(value)} ms` : count(value);

function limits(now) {
  const inputs = LIMITS.map(([name, label, unit]) => [name, label, el("input", {
    id: `limit-${name}`, type: "number", min: 0, step: scale(name) === 1 ? 1 : "any", value: name in now ? String(now[name] / scale(name)) : "", inputmode: "numeric",
  }), unit]);
  const given = (name, input) => Math.round(Number(input.value) * scale(name));
  const trouble = el("p", { class: "trouble", role: "alert" });
  const { site } = context;
  open("How dumps read", [
    el("p", { class: "muted" }, "For running dumps and later ones, until it is changed again."),
    el("div", { class: "form" }, inputs.map(([name, label, input, unit]) => [
      el("label", { for: `limit-${name}` }, label), el("span", { class: "field" }, input, el("small", { class: "muted" }, unit))])), trouble,
  ], [button("Leave it", close), button("Go on", () => {
    const changed = inputs.filter(([name, , input]) => input.value !== "" && given(name, input) !== now[name]);
    if (!changed.length) {
      trouble.textContent = "Nothing is changed.";
      return;
    }
    const options = Object.fromEntries(changed.map(([name, , input]) => [name, given(name, input)]));
    confirm("Change how dumps read?", el("ul", {}, changed.map(([name, label, input]) =>
      el("li", {}, `${label}: ${shown(name, now[name])} → ${shown(name, given(name, input))}`))), "Change it",
    () => send(site, "set-dump-options", options, () => "Changed."));
  }, { class: "primary", "data-act": "limits" })]);
}
