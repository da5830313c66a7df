// Figures over time: what the server has kept, and what the stream brings each second. Counters become rates,
// sums and counts of histograms become means, over a few samples.

import { get } from "./api.js";

/** @typedef {{name: string, labels: Record<string, string>, values: (number | null)[]}} Kept */

const SMOOTH = 5; // samples that a rate is taken over

export class FigureHistory {
  /** @param {string[]} names of /platform/v1/history @param {number} spanS */
  constructor(names, spanS) {
    this.names = names;
    this.spanS = spanS;
    /** @type {number[]} seconds since the epoch */
    this.times = [];
    /** @type {Map<string, Kept>} */
    this.kept = new Map();
    this.intervalS = 1;
  }

  async load() {
    const found = await get(`/platform/v1/history?window_s=${this.spanS}&names=${this.names.join(",")}`);
    this.times = found.times;
    this.intervalS = found.interval_s;
    this.kept = new Map(
      found.series.map((/** @type {any} */ one) => [
        keyOf(one),
        { name: one.name, labels: one.labels, values: one.values },
      ]),
    );
  }

  /** One more second, where seconds are kept. @param {number} at @param {import("./live.js").Figure[]} figures */
  add(at, figures) {
    if (this.intervalS > 1 || at <= (this.times[this.times.length - 1] ?? 0)) return;
    this.times.push(at);
    for (const one of figures) {
      if (!this.names.includes(one.name)) continue;
      const key = keyOf(one);
      const series = this.kept.get(key) ?? {
        name: one.name,
        labels: one.labels,
        values: Array(this.times.length - 1).fill(null),
      };
      series.values.push(one.value);
      this.kept.set(key, series);
    }
    for (const series of this.kept.values()) if (series.values.length < this.times.length) series.values.push(null);
    while (at - this.times[0] > this.spanS) {
      this.times.shift();
      for (const series of this.kept.values()) series.values.shift();
    }
  }

  /**
   * Sums by the value of a label; rates of counters.
   *
   * @param {string} name
   * @param {{by?: string, isRate?: boolean, picks?: (labels: Record<string, string>) => boolean}} [how]
   * @returns {Map<string, (number | null)[]>}
   */
  sums(name, { by = "", isRate = false, picks = () => true } = {}) {
    /** @type {Map<string, (number | null)[]>} */
    const found = new Map();
    for (const series of this.kept.values()) {
      if (series.name !== name || !picks(series.labels)) continue;
      const group = by ? (series.labels[by] ?? "") : "";
      const values = isRate ? ratesOf(series.values, this.times) : series.values;
      const before = found.get(group);
      found.set(group, before ? values.map((value, index) => sumOf(before[index], value)) : values);
    }
    return found;
  }

  /** Quotients of two rates, such as the mean of a histogram. @param {string} above @param {string} below @param {any} [how] */
  quotients(above, below, how) {
    const under = this.sums(below, { ...how, isRate: true });
    return new Map(
      [...this.sums(above, { ...how, isRate: true })].map(([group, values]) => [
        group,
        values.map((value, index) => {
          const divisor = under.get(group)?.[index];
          return value !== null && divisor ? value / divisor : null;
        }),
      ]),
    );
  }
}

/** @param {{name: string, labels: Record<string, string>}} one */
const keyOf = (one) => JSON.stringify([one.name, Object.entries(one.labels).sort()]);

/** @param {number | null} a @param {number | null} b */
const sumOf = (a, b) => (a === null ? b : b === null ? a : a + b);

/** Of counters; null where one is not known, or a process has begun anew. @param {(number | null)[]} values @param {number[]} times seconds */
export function ratesOf(values, times) {
  return values.map((value, index) => {
    const before = Math.max(0, index - SMOOTH);
    const first = values[before];
    if (value === null || first === null || before === index || value < first) return null;
    return (value - first) / (times[index] - times[before]);
  });
}
