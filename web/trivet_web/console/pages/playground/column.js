// A conversation with one model. Two stand side by side where they are compared.

import { ApiError, isAbort, streamed } from "../../base/api.js";
import { announce, byId, h, icon } from "../../base/dom.js";
import { filterOf } from "../../base/filters.js";
import { setChoices } from "../../base/form.js";
import { may, pageData } from "../../base/page_data.js";
import { t } from "../../base/texts.js";
import { Answer } from "./answer.js";
import { cutAt, instead, switchTo } from "./branches.js";
import { Turn } from "./turn.js";

const KEY = `trivet-conversation ${pageData.user ?? ""}`; // shell.js removes it at the end of a login
const MOST_KEPT = 100;

/**
 * @typedef {object} Message
 * @property {"user" | "assistant"} role
 * @property {string} content
 * @property {string} [reasoning]
 * @property {any[]} [tool_calls]
 * @property {Record<string, any>} [numbers] of an answer
 * @property {import("./branches.js").Branch[]} [others] in its place (branches.js)
 * @property {number} [place] among them
 */

export class Column {
  /**
   * @param {number} place 0, or 1 for the one that is compared
   * @param {import("./settings.js").Settings} settings
   * @param {() => void} onChange
   * @param {Message[]} [messages] to begin with
   */
  constructor(place, settings, onChange, messages) {
    this.place = place;
    this.settings = settings;
    this.onChange = onChange;
    /** @type {Message[]} */
    this.messages = messages ? [...messages] : remembered();
    /** @type {AbortController | null} */
    this.running = null;
    this.select = h("select", { "aria-label": t("playground.model") });
    this.select.addEventListener("change", () => this.onChange());
    this.note = h("span", { class: "quiet" });
    this.log = h("div", {
      class: "talk-log",
      tabindex: "0",
      role: "log",
      "aria-live": "off",
      "aria-label": t("playground.conversation"),
    });
    this.node = h(
      "section",
      { class: "talk-column card flush" },
      h("header", { class: "talk-head" }, this.select, this.note),
      this.log,
    );
    byId("columns").append(this.node);
    this.wanted = filterOf(place ? "other" : "model");
    this.draw();
  }

  remove() {
    this.stop();
    this.node.remove();
  }

  get isRunning() {
    return this.running !== null;
  }

  /** @returns {string} */
  get model() {
    return this.select.value;
  }

  /** @param {any[]} models of /v1/models */
  showModels(models) {
    const ready = models.filter((one) => one.ready);
    const rest = models.filter((one) => !one.ready);
    setChoices(this.select, [
      ...ready.map((one) => pair(one.id, one.id)),
      ...rest.map((one) => pair(one.id, t("playground.not_ready", { name: one.id }))),
      ...(models.length ? [] : [pair("", t("playground.no_model"))]),
    ]);
    if (this.wanted && models.some((one) => one.id === this.wanted)) this.select.value = this.wanted;
    else if (this.place && !this.wanted)
      this.select.value = (ready.find((one) => one.id !== filterOf("model")) ?? ready[0])?.id ?? "";
    if (models.length) this.wanted = this.select.value;
    const chosen = models.find((one) => one.id === this.select.value);
    this.note.replaceChildren(chosen?.max_model_len ? t("playground.context", { count: chosen.max_model_len }) : "");
    this.isEmptySite = !models.length;
    if (!this.messages.length && !this.isRunning) this.draw();
  }

  clear() {
    this.stop();
    this.messages = [];
    this.keep();
    this.draw();
  }

  /** What is sent. @param {string} [next] one more message of the user */
  body(next) {
    const { system, fields } = this.settings.read();
    const before = this.messages.map(({ role, content }) => ({ role, content }));
    const messages = [
      ...(system ? [{ role: "system", content: system }] : []),
      ...before,
      ...(next ? [{ role: "user", content: next }] : []),
    ];
    return { model: this.model, messages, stream: true, stream_options: { include_usage: true }, ...fields };
  }

  exported() {
    const { stream, stream_options: options, ...request } = this.body();
    return { request, messages: this.messages };
  }

  /** @param {string} content @param {import("./branches.js").Branch[]} [others] in whose place it comes */
  ask(content, others = []) {
    if (!this.model) return;
    this.messages.push(instead({ role: "user", content }, others));
    this.answer();
  }

  /** Ask again what was asked before the message `index`. @param {number} index */
  again(index) {
    if (this.isRunning) return;
    const { before, others } = cutAt(this.messages, index);
    this.messages = before;
    this.answer(others);
  }

  /** @param {number} index @param {string} content of the user's message, edited */
  edit(index, content) {
    if (this.isRunning) return;
    const { before, others } = cutAt(this.messages, index);
    this.messages = before;
    this.ask(content, others);
  }

  /** Go on with another of those in one place. @param {number} index @param {number} place */
  turnTo(index, place) {
    if (this.isRunning) return;
    this.messages = switchTo(this.messages, index, place);
    this.keep();
    this.draw();
  }

  /** @param {number} index */
  delete(index) {
    if (this.isRunning) return;
    this.messages.splice(index, 1);
    this.keep();
    this.draw();
  }

  stop() {
    this.running?.abort();
  }

  /** @param {import("./branches.js").Branch[]} [others] in whose place it comes */
  async answer(others = []) {
    const messages = this.messages; // Clear begins another conversation; this answer is not part of it
    this.running = new AbortController();
    this.onChange();
    this.draw();
    const view = new Answer(this.log);
    try {
      for await (const event of streamed("/v1/chat/completions", this.body(), this.running.signal)) view.take(event);
      view.finish();
      announce(view.text);
    } catch (error) {
      if (isAbort(error)) view.finish(t("playground.stopped"));
      else if (error instanceof ApiError) view.fail(error, () => this.again(messages.length - (view.text ? 1 : 0)));
      else throw error;
    } finally {
      this.running = null;
      if (view.text || view.toolCalls.length) messages.push(instead(view.message(), others));
      else if (others.length && messages === this.messages)
        this.messages = switchTo([...messages, instead(view.message(), others)], messages.length, others.length - 1);
      this.keep();
      if (!view.hasFailed && messages === this.messages) this.draw();
      this.onChange();
    }
  }

  draw() {
    const turns = this.messages.map((message, index) => new Turn(this, message, index).node);
    this.log.replaceChildren(...(turns.length ? turns : [this.welcome()]));
    this.log.scrollTop = this.log.scrollHeight;
  }

  welcome() {
    if (!this.isEmptySite) return h("div", { class: "empty talk-welcome" }, h("p", {}, t("playground.welcome")));
    const launch =
      may("operate") &&
      h("a", { class: "button primary", href: "/console/launch" }, icon("plus"), t("playground.launch"));
    return h("div", { class: "empty talk-welcome" }, h("p", {}, t("playground.nothing_runs")), launch);
  }

  /** In this browser only. */
  keep() {
    if (this.place) return;
    for (let most = MOST_KEPT; most; most >>= 1) {
      const kept = this.messages.slice(-most);
      try {
        localStorage.removeItem(KEY);
        localStorage.setItem(KEY, JSON.stringify(kept, (name, value) => (name === "tokens" ? [] : value)));
        return;
      } catch {
        // There is no room for so many, or none at all.
      }
    }
  }
}

/** @returns {Message[]} */
function remembered() {
  try {
    return JSON.parse(localStorage.getItem(KEY) ?? "[]");
  } catch {
    return [];
  }
}

/** @param {string} value @param {string} word @returns {[string, string]} */
const pair = (value, word) => [value, word];
