// What a problem means: its entry of the page about failures, which is served beside this one.

import { isOpen, open } from "./dialogs.js";
import { el } from "./dom.js";

let text = null;

export async function help(page) {
  const anchor = page.split("#")[1] ?? "";
  const mine = open("What this means", el("p", {}, "…"));
  let trouble = "the page has no such entry";
  try {
    if (text === null) {
      const response = await fetch("web/files/failure-modes.md", { signal: AbortSignal.timeout(10000) });
      if (response.ok) text = await response.text();
      else trouble = "it is not installed here";
    }
  } catch {
    trouble = "The server does not answer.";
  }
  if (!isOpen(mine)) return;
  const entry = text === null ? null : section(text.split("\n"), anchor);
  if (entry === null) open("What this means", el("p", {}, `See ${page}. (${trouble})`));
  else open(entry.title, [el("div", { class: "prose" }, render(entry.lines)), el("p", { class: "muted" }, page)]);
}

const slug = (title) => title.toLowerCase().replace(/[^\w\- ]/g, "").replaceAll(" ", "-");

function section(lines, anchor) {
  const heading = (line) => /^(#{1,6}) (.*)$/.exec(line);
  const start = lines.findIndex((line) => heading(line) && slug(heading(line)[2]) === anchor);
  if (start < 0) return null;
  const depth = heading(lines[start])[1].length;
  let end = start + 1;
  while (end < lines.length && !(heading(lines[end]) && heading(lines[end])[1].length <= depth)) end += 1;
  return { title: heading(lines[start])[2].replaceAll("`", ""), lines: lines.slice(start + 1, end) };
}

// As much of Markdown as that page has.
function render(lines) {
  const found = [];
  for (let at = 0; at < lines.length; ) {
    const line = lines[at];
    const block = [];
    const take = (fits) => {
      while (at < lines.length && fits(lines[at])) block.push(lines[at++]);
    };
    if (!line.trim()) at += 1;
    else if (line.trim().startsWith("```")) {
      at += 1;
      take((each) => !each.trim().startsWith("```"));
      at += 1;
      found.push(el("pre", {}, block.join("\n")));
    } else if (line.startsWith("|")) {
      take((each) => each.startsWith("|"));
      found.push(table(block));
    } else if (line.startsWith("#")) {
      found.push(el("h3", {}, inline(line.replace(/^#+ /, ""))));
      at += 1;
    } else if (/^[-*] /.test(line)) {
      take((each) => /^([-*] |  )/.test(each));
      const items = block.join("\n").split(/^[-*] /m).slice(1);
      found.push(el("ul", {}, items.map((each) => el("li", {}, inline(each.replace(/\s+/g, " "))))));
    } else {
      take((each) => each.trim() && !/^(\||#|[-*] |```)/.test(each));
      found.push(el("p", {}, inline(block.join(" "))));
    }
  }
  return found;
}

function table(rows) {
  const cells = (row) => row.replace(/^\||\|$/g, "").split(/(?<!\\)\|/).map((each) => each.trim());
  const [head, , ...body] = rows;
  return el("div", { class: "scroll" }, el("table", {},
    el("thead", {}, el("tr", {}, cells(head).map((each) => el("th", {}, inline(each))))),
    el("tbody", {}, body.map((row) => el("tr", {}, cells(row).map((each) => el("td", {}, inline(each))))))));
}

function inline(source) {
  return source.split(/(``[^`]+``|`[^`]+`|\*\*[^*]+\*\*|\*[^*]+\*|\[[^\]]+\]\([^)]+\))/).map((part) => {
    if (part.startsWith("`")) return el("code", {}, part.replace(/^`+ ?| ?`+$/g, ""));
    if (part.startsWith("**") && part.length > 4) return el("strong", {}, inline(part.slice(2, -2)));
    if (/^\*[^*]+\*$/.test(part)) return el("em", {}, inline(part.slice(1, -1)));
    const link = /^\[([^\]]+)\]\(/.exec(part);
    return link ? link[1].replaceAll("`", "") : part;
  });
}
