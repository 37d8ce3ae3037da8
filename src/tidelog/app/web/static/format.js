// Numbers, spans and times for people.

const UNITS = ["B", "KiB", "MiB", "GiB", "TiB"];

export function count(value) {
  return value === null || value === undefined ? "–" : Math.round(value).toLocaleString("en");
}

export function bytes(value) {
  if (value === null || value === undefined) return "–";
  let unit = 0;
  while (value >= 1024 && unit < UNITS.length - 1) {
    value /= 1024;
    unit += 1;
  }
  return `${value >= 100 || unit === 0 ? Math.round(value) : value.toFixed(1).replace(/\.0$/, "")} ${UNITS[unit]}`;
}

// [number, unit], so that the unit can be small.
export function spanParts(seconds) {
  if (seconds === null || seconds === undefined) return ["–", ""];
  if (seconds < 10) return [seconds.toFixed(1).replace(/\.0$/, ""), "s"];
  if (seconds < 120) return [String(Math.round(seconds)), "s"];
  if (seconds < 7200) return [String(Math.round(seconds / 60)), "min"];
  if (seconds < 172800) return [(seconds / 3600).toFixed(1).replace(/\.0$/, ""), "h"];
  return [String(Math.round(seconds / 86400)), "days"];
}

export function span(seconds) {
  return spanParts(seconds).join(" ").trim();
}

export function clock(ms) {
  if (!ms) return "–";
  const at = new Date(ms);
  const time = at.toLocaleTimeString("en-GB");
  if (at.toDateString() === new Date().toDateString()) return time;
  return `${at.getFullYear()}-${String(at.getMonth() + 1).padStart(2, "0")}-${String(at.getDate()).padStart(2, "0")} ${time}`;
}

export function rate(value) {
  if (value === null || value === undefined) return "–";
  return value < 10 ? value.toFixed(1).replace(/\.0$/, "") : count(value);
}

// [text and places where the line may end]: an identifier is torn at its dots and underscores alone.
export function breakable(name) {
  return name.split(/(?<=[._/-])/).flatMap((part, place) => place ? [document.createElement("wbr"), part] : [part]);
}

export function plural(number, word) {
  return `${count(number)} ${word}${number === 1 ? "" : "s"}`;
}

// Of the source's log, a pipeline or a dump, as the overview has it.
export function pausedText({ paused_by: by, paused_ms: since }) {
  return `paused${by ? ` by ${by}` : ""}${since === null ? "" : ` since ${clock(since)}`}`;
}
