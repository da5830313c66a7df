// Four numbers that tell at a glance whether the site is well.

import { quantile } from "../../base/charts/scale.js";
import { h, setText } from "../../base/dom.js";
import { count, duration, NONE, rate } from "../../base/format.js";
import { t, tn } from "../../base/texts.js";

export class Tiles {
  /** @param {HTMLElement} parent */
  constructor(parent) {
    /** @type {Map<string, {value: HTMLElement, unit: HTMLElement, note: HTMLElement}>} */
    this.parts = new Map();
    parent.append(...["rate", "requests", "ttft", "failures"].map((name) => this.tile(name)));
  }

  /** @param {string} name */
  tile(name) {
    const value = h("span", {}, NONE);
    const unit = h("span", { class: "unit" });
    const note = h("p", { class: "tile-note" });
    this.parts.set(name, { value, unit, note });
    return h(
      "div",
      { class: "card tile" },
      h("h2", {}, t(`overview.tile.${name}`)),
      h("p", { class: "stat" }, value, unit),
      note,
    );
  }

  /** @param {Record<string, any>[]} instances @param {import("../../base/rates.js").Rates} rates */
  showInstances(instances, rates) {
    const loads = instances.map((one) => one.load).filter(Boolean);
    const sum = (/** @type {string} */ name) => loads.reduce((total, load) => total + load[name], 0);
    this.set("rate", rate(rates.total()), t("overview.tokens_per_s"));
    this.set("requests", count(sum("num_running")), `/ ${count(sum("num_waiting"))}`);
    this.ready = instances.filter((one) => one.state === "ready").length;
    this.showReady();
  }

  /** @param {Record<string, any>[]} deployments */
  showDeployments(deployments) {
    this.wanted = deployments
      .filter((one) => one.desired === "running")
      .reduce((total, one) => total + one.replicas, 0);
    this.showReady();
  }

  showReady() {
    this.note("rate", t("overview.ready_of", { ready: this.ready ?? 0, wanted: this.wanted ?? 0 }));
  }

  /** @param {{ttft: {bounds: number[], counts: number[]}, total: number}} latencies */
  showLatencies({ ttft }) {
    const p95 = quantile(0.95, ttft.bounds, ttft.counts);
    const p50 = quantile(0.5, ttft.bounds, ttft.counts);
    const total = ttft.counts.reduce((sum, one) => sum + one, 0);
    this.set("ttft", p95 === null || !Number.isFinite(p95) ? NONE : duration(p95), "p95");
    this.note(
      "ttft",
      total
        ? `${t("overview.median", { value: duration(p50) })} · ${tn("overview.first_tokens", total)}`
        : t("base.no_samples"),
    );
  }

  /** @param {import("../../base/live.js").Figure[]} figures */
  showFigures(figures) {
    const sum = (/** @type {string} */ name) =>
      figures.filter((one) => one.name === name).reduce((total, one) => total + one.value, 0);
    const failed = sum("request_failures_total");
    this.set("failures", count(failed), t("overview.of", { total: count(failed + sum("request_success_total")) }));
    this.note("failures", t("overview.since_start"));
    this.note("requests", t("overview.running_waiting"));
  }

  /** @param {string} name @param {string} value @param {string} unit */
  set(name, value, unit) {
    const part = this.parts.get(name);
    if (!part) return;
    setText(part.value, value);
    setText(part.unit, unit);
  }

  /** @param {string} name @param {string} text */
  note(name, text) {
    const part = this.parts.get(name);
    if (part) setText(part.note, text);
  }
}
