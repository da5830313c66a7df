// Why an instance failed, its last words, and the way to the whole log: above everything else.

import { getText } from "../../base/api.js";
import { codeBlock } from "../../base/copy.js";
import { h, icon } from "../../base/dom.js";
import { visibleText, withoutEscapes } from "../../base/plain_text.js";
import { stateWord } from "../../base/badge.js";
import { t } from "../../base/texts.js";

const LAST_LINES = 20;

export class Failure {
  /** @param {HTMLElement} place @param {string} id */
  constructor(place, id) {
    this.place = place;
    this.id = id;
    this.shown = "";
  }

  /** @param {Record<string, any>} instance */
  async show(instance) {
    const isBad = ["failed", "lost"].includes(instance.state);
    this.place.hidden = !isBad && !instance.notices.length;
    const key = JSON.stringify([instance.state, instance.reason, instance.notices, instance.attempt]);
    if (key === this.shown || this.place.hidden) return;
    this.shown = key;
    const lines = h("div");
    this.place.replaceChildren(
      h(
        "div",
        { class: isBad ? "error-box" : "error-box is-notice", role: isBad ? "alert" : "status" },
        h("p", { class: "error-title" }, isBad ? stateWord(instance.state) : t("instance.notices")),
        isBad && h("p", {}, instance.reason),
        instance.notices.map((/** @type {string} */ one) => h("p", {}, one)),
        lines,
        isBad &&
          h(
            "p",
            { class: "row" },
            h(
              "a",
              { class: "button small", href: `/console/launch?model=${encodeURIComponent(instance.model)}` },
              icon("again"),
              t("instance.launch_otherwise"),
            ),
            h(
              "span",
              { class: "quiet" },
              t("instance.diagnose"),
              " ",
              h("code", {}, `trivet diagnose ${instance.deployment}`),
            ),
          ),
      ),
    );
    if (!isBad) return;
    const text = await getText(`/platform/v1/logs/${encodeURIComponent(this.id)}?tail=${LAST_LINES}`).catch(() => ""); // it may never have started
    if (text.trim())
      lines.replaceChildren(h("h3", {}, t("instance.last_lines")), codeBlock(visibleText(withoutEscapes(text.trim()))));
  }
}
