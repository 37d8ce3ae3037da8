// A token becomes a cookie that scripts can't read.

import { post, unless } from "./api.js";
import { byId, el } from "./dom.js";

export function login(done, why = "") {
  const token = el("input", { id: "token", type: "password", autocomplete: "current-password", required: true });
  const name = el("input", { id: "name", type: "text", autocomplete: "username", maxlength: 60 });
  const trouble = el("p", { class: "trouble", role: "alert" }, why);
  const enter = el("button", { type: "submit", class: "primary" }, "Log in");
  const form = el("form", {
    onsubmit: async (event) => {
      event.preventDefault();
      enter.disabled = true;
      trouble.textContent = "";
      try {
        await post("web/login", { token: token.value, name: name.value });
        token.value = "";
        await done();
      } catch (error) {
        trouble.textContent = error.message;
        token.select();
        unless(error);
      } finally {
        enter.disabled = false;
      }
    },
  },
  el("h1", {}, "Log in"),
  el("label", { for: "token" }, "Token"), token,
  el("small", { class: "muted" }, "control.rest.token to act, viewer_token to view"),
  el("label", { for: "name" }, "Your name"), name,
  el("small", { class: "muted" }, "for the audit list; may be empty"),
  trouble, enter);
  byId("login").replaceChildren(form);
  byId("login").hidden = false;
  byId("page").hidden = true;
  token.focus();
}
