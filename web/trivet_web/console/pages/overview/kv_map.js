// Who holds the KV blocks of the busiest instance, asked of its engine every other second.

import { get } from "../../base/api.js";
import { cellOf, heldShares } from "../../base/charts/kv_cells.js";
import { HeatMap } from "../../base/charts/heat_map.js";
import { count, percent } from "../../base/format.js";
import { t } from "../../base/texts.js";

const EVERY_MS = 2000;

export class KvMap {
  /** @param {HTMLElement} parent */
  constructor(parent) {
    this.map = new HeatMap(parent, { title: t("overview.kv"), file: "kv-blocks", note: t("overview.kv_note") });
    this.map.show([], []);
    /** @type {string | null} */
    this.instance = null;
    setInterval(() => document.hidden || this.ask(), EVERY_MS);
  }

  /** @param {Record<string, any>[]} instances */
  follow(instances) {
    const ready = instances.filter((one) => one.state === "ready" && one.load);
    ready.sort(
      (a, b) =>
        b.load.num_running - a.load.num_running || b.load.kv_usage - a.load.kv_usage || a.id.localeCompare(b.id),
    );
    const chosen = ready[0] ?? null;
    const isNew = chosen?.id !== this.instance;
    this.instance = chosen?.id ?? null;
    this.name = chosen?.deployment;
    if (!chosen) this.map.show([], [{ name: t("overview.no_ready_instance"), value: "" }]);
    else if (isNew) this.ask();
  }

  async ask() {
    if (this.instance === null || this.isAsking) return;
    this.isAsking = true;
    const { instance } = this;
    const view = await get(`/platform/v1/instances/${encodeURIComponent(instance)}/batch`).catch(() => null); // it may have just ended
    this.isAsking = false;
    if (instance !== this.instance) this.ask(); // another is the busiest by now
    else if (view) this.show(view);
  }

  /** @param {any} view client.BatchView */
  show(view) {
    const names = new Map(view.lanes.map((/** @type {any} */ lane) => [lane.slot, lane.request_id]));
    const cells = view.blocks.map((/** @type {number} */ owner) => cellOf(owner, names));
    const { held, cached } = heldShares(view.blocks);
    this.map.show(cells, [
      { name: this.name ?? "", value: t("overview.blocks", { count: count(view.num_blocks) }) },
      { name: t("base.kv.held"), value: percent(held), colour: "--series-0" },
      { name: t("base.kv.cached"), value: percent(cached), colour: "--muted" },
    ]);
  }
}
