// Elements from texts: whatever a table is called, it is shown, and never read as markup.

const SVG = "http://www.w3.org/2000/svg";

export function el(tag, attributes = {}, ...children) {
  return fill(document.createElement(tag), attributes, children);
}

export function svg(tag, attributes = {}, ...children) {
  return fill(document.createElementNS(SVG, tag), attributes, children);
}

function fill(node, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (value === undefined || value === null || value === false) continue;
    if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else if (name === "value") node.value = value;
    else node.setAttribute(name, value === true ? "" : value);
  }
  node.append(...children.flat(Infinity).filter((child) => child !== null && child !== undefined && child !== false));
  return node;
}

export function byId(id) {
  return document.getElementById(id);
}

// A button that is replaced between press and release is never clicked.
let pressed = null;
document.addEventListener("pointerdown", (event) => {
  pressed = event.target;
}, true);
for (const end of ["pointerup", "pointercancel"]) {
  document.addEventListener(end, () => setTimeout(() => {
    pressed = null;
  }), true);
}

export function isPressed(node) {
  return pressed !== null && node.contains(pressed);
}

// Anew only if something differs: what is selected or focused stays so.
export function show(node, key, make) {
  const text = JSON.stringify(key);
  if (node.shownKey === text || isPressed(node)) return; // what comes next shows it
  const focused = node.contains(document.activeElement) ? document.activeElement.dataset.focus : null;
  node.shownKey = text;
  node.replaceChildren(...[make()].flat(Infinity).filter(Boolean));
  if (focused) node.querySelector(`[data-focus="${CSS.escape(focused)}"]`)?.focus();
}

export function clear(node) {
  node.shownKey = undefined;
  node.replaceChildren();
}

// A sign beside each colour: the page reads without any.
export const SIGNS = { ok: "✓", info: "i", warning: "!", critical: "✕" };
export const SAID = { ok: "Well", info: "Note", warning: "Warning", critical: "Critical" };

export function sign(severity) {
  return el("span", { class: `sign ${severity}`, role: "img", "aria-label": SAID[severity] }, SIGNS[severity]);
}

export function button(label, onclick, attributes = {}) {
  return el("button", { type: "button", onclick, ...attributes }, label);
}

let toastTimer = 0;
export function toast(message, kind = "ok") {
  const box = byId("toasts");
  box.replaceChildren(el("div", { class: `toast ${kind}` }, sign(kind), message));
  clearTimeout(toastTimer);
  toastTimer = setTimeout(() => box.replaceChildren(), kind === "ok" ? 6000 : 15000);
}
