// What a launch takes on the device that it gets: a bar of its memory, how many can be served at once, or why
// it does not fit and the smallest change that would help.

import { change, isAbort } from "../../base/api.js";
import { badge } from "../../base/badge.js";
import { memoryBar } from "../../base/charts/memory_bar.js";
import { h, icon } from "../../base/dom.js";
import { bytes, count, rate } from "../../base/format.js";
import { plainTable } from "../../base/plain_table.js";
import { saidNode } from "../../base/said.js";
import { soon } from "../../base/soon.js";
import { errorBox } from "../../base/states.js";
import { t, tn } from "../../base/texts.js";

const PAUSE_MS = 350; // after the last key, before a plan is asked for
const SHOWN_CHANGES = 4;

export class Fit {
  /** @param {HTMLElement} place @param {HTMLElement} state @param {(setting: string, value: string) => void} onApply */
  constructor(place, state, onApply) {
    this.place = place;
    this.state = state;
    this.onApply = onApply;
    /** @type {Record<string, any>[]} */
    this.devices = [];
    this.last = "";
    this.askLater = soon((/** @type {string} */ wanted) => this.ask(wanted), PAUSE_MS);
  }

  /** @param {Record<string, any>[]} devices */
  showDevices(devices) {
    this.devices = devices;
  }

  /** @param {Record<string, any>} launch */
  askSoon(launch) {
    const { model, backend, device, settings } = launch;
    const wanted = JSON.stringify({ model, backend, device, settings });
    if (wanted === this.last) return;
    this.last = wanted;
    this.asking?.abort();
    this.state.replaceChildren(badge("warn", t("launch.planning")));
    this.askLater(wanted);
  }

  /** @param {string} wanted */
  async ask(wanted) {
    const body = JSON.parse(wanted);
    if (!body.model) {
      this.state.replaceChildren();
      this.place.replaceChildren(h("p", { class: "quiet" }, t("launch.choose_model")));
      return;
    }
    this.asking = new AbortController();
    try {
      this.show(await change("POST", "/platform/v1/plan", body, this.asking.signal));
    } catch (error) {
      if (isAbort(error)) return;
      this.state.replaceChildren();
      this.place.replaceChildren(errorBox(/** @type {any} */ (error)));
    }
  }

  /** @param {any} plan client.Plan */
  show(plan) {
    this.state.replaceChildren(badge(plan.fits ? "ok" : "bad", t(plan.fits ? "launch.fits" : "launch.does_not_fit")));
    this.place.replaceChildren(
      h("div", { class: "stack" }, plan.fits ? this.fitting(plan) : this.failing(plan), this.table(plan.devices)),
    );
  }

  /** @param {any} plan */
  fitting(plan) {
    const own = plan.devices.find(
      (/** @type {any} */ one) => one.backend === plan.backend && one.device === plan.device,
    );
    const taken = (own?.ours_bytes ?? 0) + (own?.others_bytes ?? 0);
    const parts = [...plan.parts, { name: "others", size_bytes: taken }];
    const needed = plan.parts.reduce((/** @type {number} */ sum, /** @type {any} */ part) => sum + part.size_bytes, 0);
    return [
      h(
        "p",
        {},
        h("b", {}, this.nameOf(plan.backend, plan.device)),
        " ",
        h("span", { class: "quiet" }, t("launch.takes", { needed: bytes(needed), total: bytes(own?.total_bytes) })),
      ),
      memoryBar(parts, own?.total_bytes ?? 0),
      h(
        "p",
        { class: "fit-headline" },
        tn("launch.sequences", plan.num_sequences, { tokens: count(plan.max_model_len) }),
      ),
      h(
        "dl",
        { class: "facts" },
        this.facts(plan).flatMap(([name, value]) => [h("dt", {}, name), h("dd", {}, value)]),
      ),
    ];
  }

  /** @param {any} plan @returns {[string, string][]} */
  facts(plan) {
    /** @type {[string, string][]} */
    const rows = [
      [
        t("launch.kv_tokens"),
        t("launch.kv_tokens_value", { tokens: count(plan.num_kv_tokens), size: plan.block_size, dtype: plan.kv_dtype }),
      ],
      [t("launch.kv_per_token"), bytes(plan.kv_token_bytes)],
      [t("launch.step_tokens"), count(plan.max_num_batched_tokens)],
    ];
    if (plan.host_bytes) rows.push([t("launch.host_bytes"), bytes(plan.host_bytes)]);
    if (plan.speed)
      rows.push([
        t("launch.speed"),
        t("launch.speed_value", { one: rate(plan.speed.one_stream), all: rate(plan.speed.all_streams_full) }),
      ]);
    return rows;
  }

  /** @param {any} plan */
  failing(plan) {
    const changes = plan.changes.slice(0, SHOWN_CHANGES);
    const apply = (/** @type {any} */ one) =>
      one.setting &&
      h(
        "button",
        { type: "button", class: "small", onclick: () => this.onApply(one.setting, String(one.value)) },
        icon("check"),
        t("launch.apply"),
      );
    return [
      saidNode("p", { class: "error" }, plan.reason),
      changes.length ? h("h3", {}, t("launch.would_help")) : null,
      h(
        "ul",
        { class: "changes" },
        changes.map((/** @type {any} */ one) =>
          h("li", { class: "row" }, saidNode("span", { class: "grow" }, one.text), apply(one)),
        ),
      ),
    ];
  }

  /** All devices that were looked at. @param {any[]} devices client.PlanDevice */
  table(devices) {
    if (devices.length < 2) return null;
    /** @type {[string, string?][]} */
    const heads = [
      [t("launch.column.device")],
      [t("launch.column.fit")],
      [t("launch.column.needs"), "number"],
      [t("launch.column.left"), "number"],
    ];
    const rows = devices.map((/** @type {any} */ one) => [
      this.nameOf(one.backend, one.device),
      badge(one.fits ? "ok" : "quiet", t(one.fits ? "launch.fits" : "launch.no")),
      bytes(one.needed_bytes),
      bytes(one.left_bytes),
    ]);
    return plainTable(t("launch.all_devices"), heads, rows);
  }

  /** @param {string} kind @param {string | null} uids */
  nameOf(kind, uids) {
    const device = this.devices.find((one) => one.kind === kind && one.uid === uids);
    return device ? `${kind}:${device.index} ${device.name}` : [...new Set([kind, uids])].filter(Boolean).join(" ");
  }
}
