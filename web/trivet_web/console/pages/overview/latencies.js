// How first tokens and the tokens after them were spread over the last five minutes.

import { get } from "../../base/api.js";
import { Histogram } from "../../base/charts/histogram.js";
import { t } from "../../base/texts.js";

const WINDOW_S = 300;
const EVERY_MS = 5000;
const TTFT = "time_to_first_token_seconds";
const TPOT = "inter_token_latency_seconds";

export class Latencies {
  /** @param {HTMLElement} ttft @param {HTMLElement} tpot @param {(found: any) => void} onNews */
  constructor(ttft, tpot, onNews) {
    this.onNews = onNews;
    this.ttft = new Histogram(ttft, { title: t("overview.ttft"), file: "ttft", note: t("overview.ttft_note") });
    this.tpot = new Histogram(tpot, {
      title: t("overview.tpot"),
      file: "tpot",
      note: t("overview.tpot_note"),
      colour: "--series-2",
    });
  }

  begin() {
    this.ask();
    setInterval(() => document.hidden || this.ask(), EVERY_MS);
  }

  async ask() {
    const found = await get(`/platform/v1/histograms?window_s=${WINDOW_S}&names=${TTFT},${TPOT}`).catch(() => null); // the next one may come
    if (!found) return;
    const ttft = merged(found.histograms, TTFT);
    const tpot = merged(found.histograms, TPOT);
    this.ttft.show(ttft.bounds, ttft.counts);
    this.tpot.show(tpot.bounds, tpot.counts);
    this.onNews({ ttft, tpot });
  }
}

/** Of all instances together. @param {any[]} histograms @param {string} name @returns {{bounds: number[], counts: number[]}} */
export function merged(histograms, name) {
  const own = histograms.filter((one) => one.name === name);
  if (!own.length) return { bounds: [], counts: [] };
  const counts = own[0].counts.map((/** @type {number} */ _, /** @type {number} */ index) =>
    own.reduce((sum, one) => sum + one.counts[index], 0),
  );
  return { bounds: own[0].bounds, counts };
}
