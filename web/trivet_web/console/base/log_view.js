// A log that is followed: only the lines in sight are in the page, so that 50,000 cost no more than 50.

import { ApiError, follow, getText, isAbort } from "./api.js";
import { piecesOf } from "./ansi.js";
import { download } from "./csv.js";
import { announce, h, icon, setText } from "./dom.js";
import { bindFilter } from "./filters.js";
import { select } from "./form.js";
import { levelOf, LogLines } from "./log_lines.js";
import { visibleText, withoutEscapes } from "./plain_text.js";
import { DataPlace } from "./states.js";
import { t, tn } from "./texts.js";
import { WrappedRows } from "./wrapped_rows.js";

const LINE_PX = 19;
const SPARE_LINES = 20; // above and below what is seen
const FIRST_LINES = 10_000;
const PAINT_MS = 100;
const RETRY_MS = 3000;
const MOST_SHOWN = 4000; // characters of one line; a click shows it whole
const WRAPS = "trivet-log-wraps"; // of this browser: whether long lines are broken
const PAD_PX = 24; // left and right of a line, as in log.css

export class LogView {
  /** @param {HTMLElement} parent whose content it replaces @param {string} label */
  constructor(parent, label) {
    this.lines = new LogLines();
    this.index = new WrappedRows();
    this.wraps = Boolean(localStorage.getItem(WRAPS));
    this.isFollowing = true;
    this.numNew = 0;
    this.chosen = -1; // the line that arrow keys have reached
    /** @type {number | null} since when the server was not heard, in milliseconds */
    this.lostAt = null;
    /** @type {ReturnType<typeof setTimeout> | undefined} */
    this.timer = undefined;
    this.rows = h("div", { class: "log-rows" });
    this.height = h("div", { class: "log-height" }, this.rows);
    this.box = h(
      "div",
      { class: "log-box", tabindex: "0", role: "log", "aria-live": "off", "aria-label": label },
      this.height,
    );
    this.more = h("button", {
      type: "button",
      class: "log-more primary small",
      hidden: true,
      onclick: () => this.toEnd(),
    });
    this.detail = h("pre", { class: "log-detail", tabindex: "0", hidden: true });
    this.count = h("span", { class: "quiet" });
    this.problem = h("span", { class: "error" });
    const body = h("div");
    this.place = new DataPlace(body, h("div", { class: "log" }, this.box, this.more, this.detail));
    parent.replaceChildren(this.toolbar(), body);
    this.box.addEventListener("scroll", () => this.onScroll());
    this.box.addEventListener("click", (/** @type {MouseEvent} */ event) => this.openAt(event));
    this.box.addEventListener("keydown", (/** @type {KeyboardEvent} */ event) => this.onKey(event));
    new ResizeObserver(() => this.paint()).observe(this.box);
  }

  toolbar() {
    const words = h("input", {
      type: "search",
      name: "text",
      placeholder: t("base.log.filter"),
      "aria-label": t("base.log.filter"),
      autocomplete: "off",
      spellcheck: "false",
    });
    const levels = /** @type {[string, string][]} */ ([
      ["", t("base.log.all_levels")],
      ...["debug", "info", "warning", "error"].map((one) => [one, one]),
    ]);
    const level = select("level", levels, "", { "aria-label": t("base.log.level") });
    const apply = () => {
      setText(this.problem, this.lines.filter(words.value, level.value) ?? "");
      this.chosen = -1;
      if (this.running) this.paint();
    };
    const wrap = h("input", { type: "checkbox", checked: this.wraps });
    wrap.addEventListener("change", () => this.wrap(wrap.checked));
    const save = h(
      "button",
      { type: "button", class: "ghost", onclick: () => this.save() },
      icon("download"),
      t("base.log.download"),
    );
    const bar = h(
      "div",
      { class: "toolbar log-toolbar" },
      words,
      level,
      this.problem,
      h("span", { class: "spacer" }),
      this.count,
      h("label", { class: "check" }, wrap, t("base.log.wrap")),
      save,
    );
    bindFilter(words, apply);
    bindFilter(level, apply);
    return bar;
  }

  /** Read it from its end and as it grows, until something else is followed. @param {string} address @param {string} file its name when it is downloaded */
  async followAddress(address, file) {
    this.stop();
    this.address = address;
    this.file = file;
    this.lines.clear();
    const { signal } = (this.running = new AbortController());
    const joint = address.includes("?") ? "&" : "?";
    let tail = FIRST_LINES;
    while (!signal.aborted) {
      try {
        const body = await follow(`${address}${joint}follow=1&tail=${tail}`, signal);
        if (tail) this.lines.clear();
        tail = 0; // a log that has ended may go on
        this.lost(null);
        await this.read(body, signal);
      } catch (error) {
        if (isAbort(error) || signal.aborted) return;
        if (error instanceof ApiError && error.status >= 400 && error.status < 500)
          return this.place.fail(error, () => this.followAddress(address, file));
        this.lost(error);
        tail = FIRST_LINES; // nobody knows how much was written meanwhile
      }
      await new Promise((resolve) => setTimeout(resolve, RETRY_MS));
    }
  }

  /** Lines that are there stay, as old ones, while the server cannot be asked. @param {unknown} error null: it answers */
  lost(error) {
    if (error === null) this.lostAt = null;
    else this.lostAt ??= Date.now();
    this.place.stale(this.lostAt);
    if (error !== null && !this.lines.all.length) this.place.fail(/** @type {any} */ (error));
  }

  stop() {
    this.running?.abort();
  }

  /** @param {ReadableStream<Uint8Array>} body @param {AbortSignal} signal */
  async read(body, signal) {
    const reader = body.pipeThrough(/** @type {any} */ (new TextDecoderStream())).getReader();
    this.paintSoon();
    while (!signal.aborted) {
      const { value, done } = await reader.read();
      if (done) return;
      const more = this.lines.push(value);
      if (!this.isFollowing) this.numNew += more;
      this.paintSoon();
    }
  }

  paintSoon() {
    this.timer ??= setTimeout(() => {
      this.timer = undefined;
      this.paint();
    }, PAINT_MS);
  }

  paint() {
    const { shown } = this.lines;
    if (shown.length) this.place.show();
    else this.place.empty(this.lines.all.length ? t("base.nothing_matches") : t("base.log.empty"));
    this.index.update(shown, this.columns(), MOST_SHOWN);
    this.height.style.height = `${this.index.count * LINE_PX}px`;
    if (this.isFollowing) this.box.scrollTop = this.box.scrollHeight;
    const row = Math.floor(this.box.scrollTop / LINE_PX);
    const first = Math.max(0, this.index.lineAt(row) - SPARE_LINES);
    const end = this.index.lineAt(row + Math.ceil(this.box.clientHeight / LINE_PX));
    const last = Math.min(shown.length, end + 1 + SPARE_LINES);
    this.rows.style.transform = `translateY(${this.index.rowOf(first) * LINE_PX}px)`;
    this.first = first;
    this.rows.replaceChildren(...shown.slice(first, last).map((line, at) => this.lineNode(line, first + at)));
    this.rows.children[this.chosen - first]?.classList.add("is-chosen");
    this.more.hidden = this.isFollowing || !this.numNew;
    if (this.numNew) setText(this.more, tn("base.log.new_lines", this.numNew));
    setText(this.count, tn("base.log.lines", shown.length));
  }

  /** Long lines are broken, or run on to the right. @param {boolean} wraps */
  wrap(wraps) {
    const top = this.index.lineAt(Math.floor(this.box.scrollTop / LINE_PX));
    this.wraps = wraps;
    if (wraps) localStorage.setItem(WRAPS, "1");
    else localStorage.removeItem(WRAPS);
    this.box.scrollLeft = 0;
    this.paint();
    if (this.isFollowing) return;
    this.box.scrollTop = this.index.rowOf(top) * LINE_PX; // the line at the top stays there
    this.paint();
  }

  /** Letters that a row holds; 0: lines are not broken. */
  columns() {
    this.box.classList.toggle("wraps", this.wraps);
    if (!this.wraps) return 0;
    if (!this.letterPx) {
      const probe = h("span", { class: "log-probe" }, "M".repeat(100));
      this.box.append(probe);
      this.letterPx = probe.getBoundingClientRect().width / 100;
      probe.remove();
    }
    return this.letterPx ? Math.max(10, Math.floor((this.box.clientWidth - PAD_PX) / this.letterPx)) : 0;
  }

  /** @param {string} line @param {number} at */
  lineNode(line, at) {
    const node = lineNode(line);
    if (this.index.columns)
      node.style.height = `${(this.index.rowOf(at + 1) - this.index.rowOf(at)) * LINE_PX}px`;
    return node;
  }

  onScroll() {
    const isAtEnd = this.box.scrollHeight - this.box.scrollTop - this.box.clientHeight < 2 * LINE_PX;
    this.isFollowing = isAtEnd;
    if (isAtEnd) this.numNew = 0;
    this.paintSoon();
  }

  toEnd() {
    this.isFollowing = true;
    this.numNew = 0;
    this.paint();
    this.box.focus();
  }

  /** @param {MouseEvent} event */
  openAt(event) {
    const row = /** @type {HTMLElement} */ (event.target).closest(".log-line");
    if (row && !String(getSelection())) this.open((this.first ?? 0) + [...this.rows.children].indexOf(row));
  }

  /** Up and Down choose a line, Enter opens it. @param {KeyboardEvent} event */
  onKey(event) {
    if (event.key === "Enter" && this.chosen >= 0) return this.open(this.chosen);
    const step = { ArrowDown: 1, ArrowUp: -1 }[event.key];
    if (!step || event.ctrlKey || event.altKey || event.metaKey) return;
    event.preventDefault();
    const seen = this.index.lineAt(Math.floor((this.box.scrollTop + this.box.clientHeight) / LINE_PX) - 1);
    const last = this.lines.shown.length - 1;
    this.chosen = Math.max(0, Math.min(last, (this.chosen < 0 ? seen : this.chosen) + step));
    this.isFollowing = false;
    const top = this.index.rowOf(this.chosen) * LINE_PX;
    this.box.scrollTop = Math.min(top, Math.max(this.box.scrollTop, top + 2 * LINE_PX - this.box.clientHeight));
    this.paint();
    announce(visibleText(withoutEscapes(this.lines.shown[this.chosen] ?? "")).slice(0, MOST_SHOWN));
  }

  /** A line whole; one of JSON laid out. @param {number} index */
  open(index) {
    this.chosen = index;
    const line = withoutEscapes(this.lines.shown[index] ?? "");
    const isSame = this.detail.dataset.line === line && !this.detail.hidden;
    this.detail.hidden = isSame;
    this.detail.dataset.line = line;
    setText(this.detail, visibleText(laidOut(line)));
    this.paint();
  }

  async save() {
    if (!this.address) return;
    const joint = this.address.includes("?") ? "&" : "?";
    download(
      this.file ?? "log.txt",
      "text/plain",
      await getText(`${this.address}${joint}tail=100000`).catch(() => this.lines.all.join("\n")),
    );
  }
}

/** @param {string} line */
const lineNode = (line) =>
  h(
    "div",
    { class: `log-line ${levelOf(line)}` },
    piecesOf(line.slice(0, MOST_SHOWN)).map(({ text, classes }) =>
      classes ? h("span", { class: classes }, text) : text,
    ),
  );

/** @param {string} line */
function laidOut(line) {
  try {
    return line.trim().startsWith("{") ? JSON.stringify(JSON.parse(line), null, 2) : line;
  } catch {
    return line;
  }
}
