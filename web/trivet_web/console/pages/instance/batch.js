// The batch of an engine as it is now: a lane for each sequence, and who holds which KV blocks.

import { get } from "../../base/api.js";
import { cellOf, heldShares } from "../../base/charts/kv_cells.js";
import { HeatMap } from "../../base/charts/heat_map.js";
import { h, KeyedList, setText } from "../../base/dom.js";
import { count, percent } from "../../base/format.js";
import { DataPlace } from "../../base/states.js";
import { t, tn } from "../../base/texts.js";

const EVERY_MS = 1000;

export class Batch {
  /** @param {HTMLElement} parent @param {string} id */
  constructor(parent, id) {
    this.id = id;
    this.title = h("span", { class: "quiet" });
    const lanes = h("div", { class: "lanes", role: "list" });
    const place = h("div");
    const names = /** @type {[string, string][]} */ ([
      ["cached", "--series-7"],
      ["prompt", "--series-1"],
      ["output", "--series-0"],
    ]);
    this.legend = h(
      "ul",
      { class: "legend", hidden: true },
      names.map(([name, colour]) => h("li", {}, dot(colour), h("span", {}, t(`instance.lane.${name}`)))),
    );
    this.kv = h("section", { class: "card", hidden: true });
    this.map = new HeatMap(this.kv, { title: t("instance.kv_blocks"), file: "kv-blocks", height: 220 });
    parent.append(
      h(
        "section",
        { class: "card" },
        h("div", { class: "card-head" }, h("h2", {}, t("instance.batch")), this.title),
        this.legend,
        place,
      ),
      this.kv,
    );
    this.place = new DataPlace(place, lanes);
    this.lanes = new KeyedList(lanes, () => new LaneView());
    this.isReady = false;
    setInterval(() => document.hidden || this.ask(), EVERY_MS);
  }

  /** @param {Record<string, any>} instance */
  follow(instance) {
    this.isReady = ["ready", "draining"].includes(instance.state);
    this.kv.hidden = !this.isReady;
    if (this.isReady) return;
    this.legend.hidden = true;
    this.place.empty(t("instance.no_batch"));
  }

  async ask() {
    if (!this.isReady || this.isAsking) return;
    this.isAsking = true;
    const view = await get(`/platform/v1/instances/${encodeURIComponent(this.id)}/batch`).catch(() => null); // it may have just ended
    this.isAsking = false;
    if (view) this.show(view);
  }

  /** @param {any} view client.BatchView */
  show(view) {
    setText(
      this.title,
      `${t("instance.slots", { used: view.lanes.length, all: view.max_num_seqs })} · ${tn("instance.num_waiting", view.num_waiting)} · ${t("instance.budget", { count: count(view.token_budget) })}`,
    );
    this.legend.hidden = !view.lanes.length;
    if (view.lanes.length) this.place.show();
    else this.place.empty(t("instance.idle"));
    const longest = Math.max(1, ...view.lanes.map((/** @type {any} */ lane) => lane.max_total_tokens));
    this.lanes.sync(
      view.lanes.map((/** @type {any} */ lane) => ({ ...lane, longest })),
      (lane) => `${lane.slot} ${lane.request_id}`,
    );
    const names = new Map(view.lanes.map((/** @type {any} */ lane) => [lane.slot, lane.request_id]));
    const { held, cached } = heldShares(view.blocks);
    this.map.show(
      view.blocks.map((/** @type {number} */ owner) => cellOf(owner, names)),
      [
        { name: t("instance.blocks", { size: view.block_size }), value: count(view.num_blocks) },
        { name: t("base.kv.held"), value: percent(held), colour: "--series-0" },
        { name: t("base.kv.cached"), value: percent(cached), colour: "--muted" },
      ],
    );
  }
}

/** @param {string} colour a custom property */
function dot(colour) {
  const node = h("i", { class: "dot" });
  node.style.background = `var(${colour})`;
  return node;
}

/** A bar over the tokens that a sequence may have: found in the cache, its prompt computed, its answer. */
class LaneView {
  constructor() {
    this.name = h("code", { class: "lane-name" });
    this.parts = ["cached", "prompt", "output"].map((name) => h("i", { class: `lane-${name}` }));
    this.bar = h("span", { class: "lane-bar" }, this.parts);
    this.numbers = h("span", { class: "lane-numbers" });
    this.node = h("div", { class: "lane", role: "listitem" }, this.name, this.bar, this.numbers);
  }

  /** @param {any} lane */
  update(lane) {
    const {
      num_prompt_tokens: prompt,
      num_cached_tokens: cached,
      num_computed_tokens: computed,
      num_output_tokens: output,
      longest,
    } = lane;
    const isPrefill = computed < prompt;
    const widths = [cached, Math.max(0, Math.min(computed, prompt) - cached), output];
    this.parts.forEach((part, index) => (part.style.width = `${(100 * widths[index]) / longest}%`));
    setText(this.name, lane.request_id);
    setText(
      this.numbers,
      isPrefill
        ? t("instance.prefill", { done: count(computed), all: count(prompt) })
        : t("instance.decode", { prompt: count(prompt), output: count(output) }),
    );
  }
}
