// What happened to a thing, the newest first.

import { list } from "./api.js";
import { stateWord, toneOf } from "./badge.js";
import { h } from "./dom.js";
import { timeNode } from "./format.js";
import { live } from "./live.js";
import { saidNode } from "./said.js";
import { DataPlace } from "./states.js";
import { t } from "./texts.js";

const MOST = 500;

export class Timeline {
  /** @param {HTMLElement} parent @param {(event: any) => boolean} isOwn @param {string} [query] that picks on the server */
  constructor(parent, isOwn, query = "") {
    this.isOwn = isOwn;
    this.query = query;
    this.list = h("ol", { class: "timeline" });
    this.place = new DataPlace(parent, this.list);
    this.hasBegun = false;
  }

  begin() {
    if (this.hasBegun) return;
    this.hasBegun = true;
    live.objects("events", () => this.read());
  }

  async read() {
    try {
      const events = await list(`/platform/v1/events?limit=${MOST}&${this.query}`);
      this.show(events.filter(this.isOwn).reverse());
    } catch (error) {
      this.place.fail(/** @type {any} */ (error), () => this.read());
    }
  }

  /** @param {any[]} events */
  show(events) {
    if (!events.length) return this.place.empty(t("base.no_events"));
    this.place.show();
    return this.list.replaceChildren(...events.map(eventNode));
  }
}

/** @param {any} event */
const eventNode = (event) =>
  h(
    "li",
    {},
    h("span", { class: "timeline-time quiet" }, timeNode(event.at)),
    h("span", { class: `badge ${toneOf(event.to ?? "")}` }, event.to ? stateWord(event.to) : event.kind),
    h("code", {}, event.instance ?? ""),
    saidNode("span", { class: "grow" }, event.reason),
  );
