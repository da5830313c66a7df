// The batch over the last five minutes: sequences that run and sequences that wait, of all instances.

import { get } from "../../base/api.js";
import { TimeChart } from "../../base/charts/time_chart.js";
import { count } from "../../base/format.js";
import { t } from "../../base/texts.js";

const SPAN_S = 300;
const RUNNING = "num_requests_running";
const WAITING = "num_requests_waiting";

export class Occupancy {
  /** @param {HTMLElement} parent */
  constructor(parent) {
    this.chart = new TimeChart(parent, {
      title: t("overview.occupancy"),
      height: 190,
      file: "batch-occupancy",
      isStacked: true,
      least: 4,
      format: count,
    });
    /** @type {{at: number, running: number, waiting: number}[]} seconds */
    this.samples = [];
    document.addEventListener("visibilitychange", () => document.hidden || this.beginAnew());
  }

  /** Nothing came while the page was hidden. */
  beginAnew() {
    this.samples = [];
    this.begin();
  }

  /** What was before the page was opened. */
  async begin() {
    const history = await get(`/platform/v1/history?window_s=${SPAN_S}&names=${RUNNING},${WAITING}`).catch(() => null); // the stream brings what follows
    if (!history) return;
    const sumAt = (/** @type {string} */ name, /** @type {number} */ index) =>
      history.series
        .filter((/** @type {any} */ one) => one.name === name)
        .reduce((/** @type {number} */ sum, /** @type {any} */ one) => sum + (one.values[index] ?? 0), 0);
    const before = history.times.map((/** @type {number} */ at, /** @type {number} */ index) => ({
      at,
      running: sumAt(RUNNING, index),
      waiting: sumAt(WAITING, index),
    }));
    const first = this.samples[0]?.at ?? Infinity;
    this.samples = [...before.filter((/** @type {any} */ one) => one.at < first), ...this.samples];
    this.draw();
  }

  /** @param {number} at seconds @param {import("../../base/live.js").Figure[]} figures */
  add(at, figures) {
    if (at <= (this.samples[this.samples.length - 1]?.at ?? 0)) return;
    const sum = (/** @type {string} */ name) =>
      figures.filter((one) => one.name === name).reduce((total, one) => total + one.value, 0);
    this.samples.push({ at, running: sum(RUNNING), waiting: sum(WAITING) });
    while (this.samples.length && at - this.samples[0].at > SPAN_S) this.samples.shift();
    this.draw();
  }

  draw() {
    const end = this.samples[this.samples.length - 1]?.at ?? Date.now() / 1000;
    this.chart.show(
      this.samples.map((one) => one.at * 1000),
      [
        { name: t("overview.running"), values: this.samples.map((one) => one.running) },
        { name: t("overview.waiting"), values: this.samples.map((one) => one.waiting) },
      ],
      [(end - SPAN_S) * 1000, end * 1000],
    );
  }
}
