// The state of an instance as a dot and a word, never a colour alone, with its reason where there is one.

import { h, setAttribute, setText } from "./dom.js";
import { percent } from "./format.js";
import { setSaid } from "./said.js";
import { textOr } from "./texts.js";

/** @type {Record<string, string>} */
const TONES = {
  ready: "ok",
  pending: "warn",
  placing: "warn",
  starting: "warn",
  loading: "warn",
  warming: "warn",
  draining: "warn",
  stopping: "warn",
  failed: "bad",
  lost: "bad",
  stopped: "quiet",
};

/** A word in a tone. @param {string} tone ok, warn, bad or quiet @param {string} word */
export const badge = (tone, word) => h("span", { class: `badge ${tone}` }, word);

/** The word of a state in the reader's language. @param {string} state */
export const stateWord = (state) => textOr(`base.state.${state}`, state);

/** @param {string} state */
export const toneOf = (state) => TONES[state] ?? "quiet";

/** The state of an instance and its reason, updated in place. */
export class StateView {
  constructor() {
    this.badge = h("span", { class: "badge" });
    this.bar = h("progress", { max: 1, class: "progress", hidden: true });
    this.reason = h("span", { class: "reason" });
    this.node = h("div", { class: "state" }, this.badge, this.bar, this.reason);
  }

  /** @param {{state: string, reason: string, progress: number | null}} instance */
  update({ state, reason, progress }) {
    const loads = state === "loading" && progress !== null;
    setAttribute(this.node, "class", state === "ready" ? "state is-ready" : "state");
    setAttribute(this.badge, "class", `badge ${toneOf(state)}`);
    setText(this.badge, loads ? `${stateWord(state)} ${percent(progress)}` : stateWord(state));
    this.bar.hidden = !loads;
    if (loads) this.bar.value = progress;
    setAttribute(this.bar, "aria-label", stateWord(state));
    setSaid(this.reason, reason);
  }
}
