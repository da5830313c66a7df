// The log of an instance as it is written.

import { h } from "../../base/dom.js";
import { LogView } from "../../base/log_view.js";
import { t } from "../../base/texts.js";

export class LogTail {
  /** @param {HTMLElement} parent @param {string} id */
  constructor(parent, id) {
    this.parent = parent;
    this.id = id;
    /** @type {LogView | null} */
    this.view = null;
  }

  begin() {
    if (this.view) return;
    const card = h("section", { class: "card flush" });
    this.parent.append(card);
    this.view = new LogView(card, t("instance.tab.logs"));
    this.view.followAddress(`/platform/v1/logs/${encodeURIComponent(this.id)}`, `${this.id}.log`);
  }
}
