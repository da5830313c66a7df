// What needs somebody: instances that failed or warn, each with its reason and the way to its log.

import { badge, stateWord, toneOf } from "../../base/badge.js";
import { h, KeyedList, setAttribute, setText } from "../../base/dom.js";
import { setSaid } from "../../base/said.js";
import { t } from "../../base/texts.js";

const MOST = 5;

export class Problems {
  /** @param {HTMLElement} card */
  constructor(card) {
    this.card = card;
    this.rest = h("p", { class: "quiet", hidden: true }, h("a", { href: "/console/instances" }));
    const rows = h("ul");
    card.append(rows, this.rest);
    this.list = new KeyedList(rows, () => new Problem());
  }

  /** @param {Record<string, any>[]} instances */
  show(instances) {
    const found = instances.flatMap(problemsOf);
    this.card.hidden = !found.length;
    this.list.sync(found.slice(0, MOST), (one) => one.key);
    this.rest.hidden = found.length <= MOST;
    setText(this.rest.firstElementChild, t("overview.more_problems", { count: found.length - MOST }));
  }
}

/** @param {Record<string, any>} instance @returns {{key: string, instance: Record<string, any>, state: string, text: string}[]} */
function problemsOf(instance) {
  const isBad = toneOf(instance.state) === "bad";
  const failed = isBad ? [{ key: instance.id, instance, state: instance.state, text: instance.reason }] : [];
  return [
    ...failed,
    ...instance.notices.map((/** @type {string} */ text) => ({
      key: `${instance.id} ${text}`,
      instance,
      state: "",
      text,
    })),
  ];
}

class Problem {
  constructor() {
    this.tone = badge("bad", "");
    this.name = h("b");
    this.text = h("span", { class: "grow" });
    this.link = h("a", {}, t("overview.look"));
    this.node = h("li", {}, this.tone, this.name, this.text, this.link);
  }

  /** @param {{key: string, instance: Record<string, any>, state: string, text: string}} problem */
  update({ instance, state, text }) {
    setAttribute(this.tone, "class", `badge ${state ? "bad" : "warn"}`);
    setText(this.tone, state ? stateWord(state) : t("overview.notice"));
    setText(this.name, instance.deployment);
    setSaid(this.text, text);
    setAttribute(this.link, "href", `/console/instances/${encodeURIComponent(instance.id)}`);
  }
}
