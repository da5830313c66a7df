// The four states of whatever shows data, besides the data: loading, empty, failed, stale.

import { headingOf } from "./api.js";
import { h, icon, setText } from "./dom.js";
import { timeOfDay } from "./format.js";
import { t } from "./texts.js";

const LOADING_AFTER_MS = 200; // sooner it would only flicker

/** One place on a page that shows data, or why it does not. */
export class DataPlace {
  /** @param {HTMLElement} parent whose content this takes over @param {HTMLElement} content shown when there is data */
  constructor(parent, content) {
    this.parent = parent;
    this.content = content;
    this.notice = h("div", { class: "notice", hidden: true });
    this.staleLine = h("p", { class: "stale-line", role: "status", hidden: true });
    content.hidden = true;
    parent.replaceChildren(this.staleLine, this.notice, content);
    this.timer = setTimeout(() => this.say(skeleton()), LOADING_AFTER_MS);
  }

  /** There is data. */
  show() {
    clearTimeout(this.timer);
    this.notice.hidden = true;
    this.content.hidden = false;
  }

  /** @param {string} sentence @param {Node | null} [action] the one thing to do about it */
  empty(sentence, action = null) {
    this.content.hidden = true;
    const key = `empty ${sentence}`;
    if (this.notice.dataset.key !== key || this.notice.hidden)
      this.say(h("div", { class: "empty" }, h("p", {}, sentence), action), key);
  }

  /** @param {import("./api.js").ApiError} error @param {() => void} [retry] */
  fail(error, retry) {
    this.content.hidden = true;
    const key = `failed ${error.message}`; // the same again is not said again
    if (this.notice.dataset.key !== key || this.notice.hidden) this.say(errorBox(error, retry), key);
  }

  /** @param {number | null} asOfMs since when nothing was heard; null: it is fresh */
  stale(asOfMs) {
    this.parent.classList.toggle("is-stale", asOfMs !== null);
    this.staleLine.hidden = asOfMs === null;
    if (asOfMs !== null) setText(this.staleLine, t("base.as_of", { time: timeOfDay(asOfMs) }));
  }

  /** @param {Node} node @param {string} [key] */
  say(node, key = "") {
    clearTimeout(this.timer);
    this.notice.dataset.key = key;
    this.notice.replaceChildren(node);
    this.notice.hidden = false;
  }
}

const skeleton = () =>
  h(
    "div",
    { class: "skeleton", role: "status" },
    h("span", { class: "visually-hidden" }, t("base.loading")),
    h("i"),
    h("i"),
    h("i"),
  );

/** What failed, in the server's words, with a way to try again. @param {import("./api.js").ApiError} error @param {() => void} [retry] */
export function errorBox(error, retry) {
  return h(
    "div",
    { class: "error-box", role: "alert" },
    h("p", { class: "error-title" }, headingOf(error)),
    h("p", { lang: error.language ?? null }, error.message),
    h(
      "p",
      { class: "row" },
      retry && h("button", { type: "button", class: "small", onclick: retry }, icon("again"), t("base.retry")),
      error.requestId && h("span", { class: "quiet" }, t("base.request_id"), " ", h("code", {}, error.requestId)),
    ),
  );
}
