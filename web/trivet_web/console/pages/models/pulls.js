// What is on its way here: how far it is, how to end it, and why it failed.

import { change, list } from "../../base/api.js";
import { badge } from "../../base/badge.js";
import { h, KeyedList, setAttribute, setText } from "../../base/dom.js";
import { ago, bytes } from "../../base/format.js";
import { may } from "../../base/page_data.js";
import { t, textOr } from "../../base/texts.js";
import { toast } from "../../base/toast.js";

const EVERY_MS = 1500;
const SHOWN_ENDED = 3;
const TONES = /** @type {Record<string, string>} */ ({
  running: "warn",
  done: "ok",
  failed: "bad",
  cancelled: "quiet",
});

export class Pulls {
  /** @param {HTMLElement} card @param {HTMLElement} place @param {() => void} onDone */
  constructor(card, place, onDone) {
    this.card = card;
    this.onDone = onDone;
    this.numRunning = 0;
    this.list = new KeyedList(place, () => new PullView());
  }

  async read() {
    clearTimeout(this.timer);
    const found = await list("/platform/v1/pulls").catch(() => null); // the next look may succeed
    if (!found) return;
    const running = found.filter((one) => one.state === "running");
    const shown = [...running, ...found.filter((one) => one.state !== "running").slice(0, SHOWN_ENDED)];
    this.card.hidden = !shown.length;
    this.list.sync(shown, (one) => one.id);
    if (running.length < this.numRunning) this.onDone();
    this.numRunning = running.length;
    if (running.length) this.timer = setTimeout(() => this.read(), EVERY_MS);
  }
}

class PullView {
  constructor() {
    this.state = badge("warn", "");
    this.source = h("b");
    this.message = h("span", { class: "grow quiet" });
    this.bar = h("progress", { max: 1 });
    this.cancel = h("button", { type: "button", class: "small" }, t("base.cancel"));
    this.node = h("div", { class: "row pull" }, this.state, this.source, this.bar, this.message, this.cancel);
    this.cancel.addEventListener("click", () => this.end());
    this.id = "";
  }

  /** @param {any} pull */
  update(pull) {
    this.id = pull.id;
    const isRunning = pull.state === "running";
    setAttribute(this.state, "class", `badge ${TONES[pull.state] ?? "quiet"}`);
    setText(this.state, textOr(`models.state.${pull.state}`, pull.state));
    setText(this.source, pull.source);
    const size = pull.total_bytes ? `${bytes(pull.done_bytes)} / ${bytes(pull.total_bytes)}` : "";
    setText(
      this.message,
      [size, pull.message || pull.version, isRunning ? "" : ago(pull.ended_at ?? pull.created_at)]
        .filter(Boolean)
        .join(" · "),
    );
    this.bar.hidden = !isRunning;
    setAttribute(this.bar, "aria-label", pull.source);
    if (pull.total_bytes) this.bar.value = pull.done_bytes / pull.total_bytes;
    this.cancel.hidden = !isRunning || !may("operate");
  }

  async end() {
    await change("DELETE", `/platform/v1/pulls/${encodeURIComponent(this.id)}`).catch((error) =>
      toast(error.message, { tone: "bad" }),
    );
  }
}
