// What an instance is and how it is.

import { StateView } from "../../base/badge.js";
import { h, setText } from "../../base/dom.js";
import { bytes, count, percent, rate, since } from "../../base/format.js";
import { Rates } from "../../base/rates.js";
import { DataPlace } from "../../base/states.js";
import { t } from "../../base/texts.js";

const NAMES = ["running", "waiting", "rate", "kv", "memory", "uptime"];

export class Summary {
  /** @param {HTMLElement} parent */
  constructor(parent) {
    this.state = new StateView();
    this.facts = h("dl", { class: "instance-facts" });
    /** @type {Map<string, HTMLElement>} */
    this.values = new Map(NAMES.map((name) => [name, h("dd")]));
    this.names = h("p", { class: "quiet" });
    for (const name of NAMES)
      this.facts.append(h("div", {}, h("dt", {}, t(`instance.${name}`)), this.values.get(name)));
    this.place = new DataPlace(
      parent,
      h("div", { class: "stack" }, h("div", { class: "row" }, this.state.node, this.names), this.facts),
    );
    this.rates = new Rates();
  }

  /** @param {Record<string, any>} one */
  show(one) {
    this.place.show();
    this.rates.add([one], Date.now());
    this.state.update(/** @type {any} */ (one));
    this.names.replaceChildren(
      h("a", { href: `/console/deployments/${encodeURIComponent(one.deployment)}` }, one.deployment),
      [
        " · ",
        one.model,
        [...new Set([one.backend, ...one.device_uids])].filter(Boolean).join(" "),
        one.pid && `pid ${one.pid}`,
      ]
        .filter(Boolean)
        .join("  ·  ")
        .replace("  ·  ", ""),
    );
    this.set("running", count(one.load?.num_running));
    this.set("waiting", count(one.load?.num_waiting));
    this.set("rate", rate(this.rates.of(one.id)));
    this.set("kv", percent(one.load?.kv_usage));
    this.set("memory", bytes(one.memory?.resident));
    this.set("uptime", since(one.ready_at));
  }

  /** @param {number | null} asOf */
  stale(asOf) {
    this.place.stale(asOf);
  }

  /** @param {string} name @param {string} value */
  set(name, value) {
    const node = this.values.get(name);
    if (node) setText(node, value);
  }
}
