// Server-sent events: reconnects when they end, or after a long silence.

const SILENT_MS = 9000;
const AGAIN_MS = 2000;

export class Live {
  // handlers: by event, and `silent(sinceMs)`, `heard()`, `ended()`.
  constructor(handlers) {
    this.handlers = handlers;
    this.heardAt = Date.now();
    this.silent = false;
    this.source = null;
    this.again = 0;
    setInterval(() => this.watch(), 500);
    document.addEventListener("visibilitychange", () => this.seen());
  }

  open(site) {
    this.close();
    this.site = site;
    if (document.hidden) return; // hidden: leave the place to others
    this.source = new EventSource(`web/stream?site=${site}`);
    for (const name of ["overview", "tables", "beat", "ended"]) {
      this.source.addEventListener(name, (event) => this.hear(name, JSON.parse(event.data)));
    }
    this.source.onerror = () => this.lost();
  }

  close() {
    clearTimeout(this.again);
    this.source?.close();
    this.source = null;
  }

  hear(name, data) {
    this.heardAt = Date.now();
    if (this.silent) {
      this.silent = false;
      this.handlers.heard();
    }
    this.handlers[name]?.(data);
  }

  seen() {
    if (this.site === undefined) return;
    this.close();
    if (document.hidden) return;
    this.heardAt = Date.now();
    this.retry();
  }

  // The browser tries again by itself only after some failures.
  lost() {
    this.close();
    this.again = setTimeout(() => this.retry(), AGAIN_MS);
  }

  async retry() {
    const { site } = this;
    const may = await this.handlers.mayGoOn();
    if (document.hidden || this.source || this.site !== site) return; // something else came first
    clearTimeout(this.again);
    if (may) this.open(site);
    else if (this.site !== undefined) this.again = setTimeout(() => this.retry(), AGAIN_MS);
  }

  stop() {
    this.close();
    this.site = undefined;
  }

  watch() {
    if (this.site === undefined || document.hidden) return;
    const dead = !this.source && Date.now() - this.heardAt > 2 * AGAIN_MS;
    if (dead || Date.now() - this.heardAt > SILENT_MS) {
      if (!this.silent && this.source) this.lost();
      this.silent = true;
      this.handlers.silent(this.heardAt);
    }
  }
}
