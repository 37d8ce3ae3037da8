// Requests to the process that served this page.

let csrf = "";

export class Refused extends Error {
  constructor(status, kind, message) {
    super(message);
    this.status = status;
    this.kind = kind;
  }
}

// For what catches failures of requests: ours are not among them, and must be heard.
export function unless(error) {
  if (!(error instanceof Refused)) throw error;
  return null;
}

async function ask(method, path, body, timeoutMs) {
  const headers = { Accept: "application/json" };
  if (method === "POST") headers["X-Tidelog-CSRF"] = csrf;
  if (body !== undefined) headers["Content-Type"] = "application/json";
  let response;
  try {
    response = await fetch(path, {
      method, headers, body: body === undefined ? undefined : JSON.stringify(body),
      credentials: "same-origin", signal: AbortSignal.timeout(timeoutMs),
    });
  } catch {
    throw new Refused(0, "NoAnswer", "The server does not answer.");
  }
  let found = {};
  try {
    found = await response.json();
  } catch {
    // an answer without a body
  }
  if (!response.ok) {
    const error = found.error ?? {};
    throw new Refused(response.status, error.kind ?? "Error", error.message ?? `The server answered ${response.status}.`);
  }
  return found;
}

export const get = (path) => ask("GET", path, undefined, 30000);
// null if it can't be had now: what is shown stays as it is.
export const got = (path) => get(path).catch(unless);
export const post = (path, body = {}, timeoutMs = 20000) => ask("POST", path, body, timeoutMs);

export async function session() {
  const found = await get("web/session");
  csrf = found.csrf;
  return found;
}
