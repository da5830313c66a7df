// Charts of one instance over the last quarter of an hour.

import { get } from "../../base/api.js";
import { TimeChart, TimeGroup } from "../../base/charts/time_chart.js";
import { h } from "../../base/dom.js";
import { ratesOf } from "../../base/figure_history.js";
import { count, percent, rate } from "../../base/format.js";
import { t } from "../../base/texts.js";

const SPAN_S = 900;
/** @type {{name: string, series: [string, string][], isRate?: boolean, format: (value: number) => string, isStacked?: boolean, least?: number}[]} */
const CHARTS = [
  {
    name: "tokens",
    series: [
      ["generation_tokens_total", "generated"],
      ["prompt_tokens_total", "prompt"],
    ],
    isRate: true,
    format: rate,
  },
  {
    name: "batch",
    series: [
      ["num_requests_running", "running"],
      ["num_requests_waiting", "waiting"],
    ],
    format: count,
    isStacked: true,
    least: 4,
  },
  {
    name: "cache",
    series: [
      ["kv_cache_usage_perc", "kv"],
      ["prefix_hit_share", "hits"],
    ],
    format: percent,
    least: 0.1,
  },
  {
    name: "preemptions",
    series: [
      ["num_preemptions_total", "preempted"],
      ["admission_rejections_total", "refused"],
    ],
    isRate: true,
    format: rate,
  },
];
const NAMES = [
  "generation_tokens_total",
  "prompt_tokens_total",
  "num_requests_running",
  "num_requests_waiting",
  "kv_cache_usage_perc",
  "prefix_cache_hits_total",
  "prefix_cache_queries_total",
  "num_preemptions_total",
  "admission_rejections_total",
];

export class Figures {
  /** @param {HTMLElement} parent @param {string} id */
  constructor(parent, id) {
    this.id = id;
    this.parent = parent;
    /** @type {{at: number, values: Record<string, number>}[]} seconds */
    this.samples = [];
    /** @type {TimeChart[]} */
    this.charts = [];
  }

  async begin() {
    if (this.charts.length) return;
    const group = new TimeGroup();
    const places = CHARTS.map(() => h("section", { class: "card" }));
    this.parent.append(h("div", { class: "columns" }, places));
    this.charts = CHARTS.map(
      (one, index) =>
        new TimeChart(places[index], {
          title: t(`instance.chart.${one.name}`),
          file: one.name,
          group,
          format: one.format,
          isStacked: one.isStacked,
          least: one.least,
        }),
    );
    const history = await get(`/platform/v1/history?window_s=${SPAN_S}&names=${NAMES.join(",")}`).catch(() => null); // the stream brings what follows
    if (!history) return;
    const own = history.series.filter((/** @type {any} */ one) => one.labels.instance === this.id);
    const before = history.times.map((/** @type {number} */ at, /** @type {number} */ index) => ({
      at,
      values: Object.fromEntries(own.map((/** @type {any} */ one) => [one.name, one.values[index]])),
    }));
    const first = this.samples[0]?.at ?? Infinity;
    this.samples = [...before.filter((/** @type {any} */ one) => one.at < first), ...this.samples];
    this.draw();
  }

  /** @param {number} at @param {import("../../base/live.js").Figure[]} figures */
  add(at, figures) {
    const values = Object.fromEntries(
      figures.filter((one) => one.labels.instance === this.id).map((one) => [one.name, one.value]),
    );
    this.samples.push({ at, values });
    while (this.samples.length && at - this.samples[0].at > SPAN_S) this.samples.shift();
    this.draw();
  }

  draw() {
    const times = this.samples.map((one) => one.at * 1000);
    const end = times[times.length - 1] ?? Date.now();
    this.charts.forEach((chart, index) => {
      const { series, isRate } = CHARTS[index];
      chart.show(
        times,
        series.map(([name, word]) => ({
          name: t(`instance.series.${word}`),
          values: this.valuesOf(name, isRate ?? false),
        })),
        [end - SPAN_S * 1000, end],
      );
    });
  }

  /** @param {string} name @param {boolean} isRate @returns {(number | null)[]} */
  valuesOf(name, isRate) {
    if (name === "prefix_hit_share") return this.hitShares();
    const values = this.samples.map((one) => one.values[name] ?? null);
    return isRate
      ? ratesOf(
          values,
          this.samples.map((one) => one.at),
        )
      : values;
  }

  /** Of prompt tokens, in the last ten seconds. @returns {(number | null)[]} */
  hitShares() {
    return this.samples.map((one, index) => {
      const before = this.samples[Math.max(0, index - 10)].values;
      const asked = one.values.prefix_cache_queries_total - before.prefix_cache_queries_total;
      return asked > 0 ? (one.values.prefix_cache_hits_total - before.prefix_cache_hits_total) / asked : null;
    });
  }
}
