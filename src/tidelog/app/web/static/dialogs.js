// One dialog at a time, the browser's own: Escape closes it, and the keyboard stays inside.

import { unless } from "./api.js";
import { byId, button, el, toast } from "./dom.js";

const dialog = () => byId("dialog");
let number = 0;

// The dialog's number, for `isOpen`.
export function open(title, content, buttons = []) {
  const box = dialog();
  box.replaceChildren(
    el("div", { class: "dialog-head" }, el("h2", { id: "dialog-title" }, title),
      button("×", close, { class: "close", "aria-label": "Close" })),
    el("div", { class: "dialog-body" }, content),
    buttons.length ? el("div", { class: "dialog-foot" }, buttons) : "",
  );
  if (!box.open) box.showModal();
  number += 1;
  return number;
}

// Is it still this one? What comes late must neither close nor replace another.
export function isOpen(mine) {
  return dialog().open && mine === number;
}

export function close() {
  dialog().close();
}

// What is to be done is done only after it was said twice; failures stay in the dialog.
export function confirm(title, content, label, act, kind = "") {
  const trouble = el("p", { class: "trouble", role: "alert" });
  const yes = button(label, async () => {
    yes.disabled = true;
    yes.textContent = "…";
    trouble.textContent = "";
    try {
      await act();
      if (isOpen(mine)) close();
    } catch (error) {
      if (!isOpen(mine)) toast(error.message, "critical");
      trouble.textContent = error.message;
      yes.disabled = false;
      yes.textContent = label;
      unless(error);
    }
  }, { class: `primary ${kind}`, "data-act": "confirm" });
  const mine = open(title, [content, trouble], [button("Leave it", close), yes]);
  yes.focus();
}
