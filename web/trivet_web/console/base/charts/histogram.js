// How observations are spread over buckets, with their quantiles as lines. Bars are drawn evenly: the buckets
// of latencies grow with their values.

import { duration } from "../format.js";
import { t } from "../texts.js";
import { ChartFrame } from "./frame.js";
import { quantile } from "./scale.js";

const TOP = 22;
const BOTTOM = 18;
const QUANTILES = [0.5, 0.95, 0.99];

export class Histogram extends ChartFrame {
  /** @param {HTMLElement} parent @param {{title: string, height?: number, file?: string, note?: string, colour?: string, format?: (value: number) => string}} given */
  constructor(parent, given) {
    super(parent, given);
    this.colour = given.colour ?? "--series-0";
    this.format = given.format ?? duration;
    /** @type {number[]} */
    this.bounds = [];
    /** @type {number[]} */
    this.counts = [];
  }

  /** @param {number[]} bounds upper ones of all buckets but the last @param {number[]} counts one more than bounds */
  show(bounds, counts) {
    this.bounds = bounds;
    this.counts = counts;
    this.redraw();
  }

  get total() {
    return this.counts.reduce((sum, one) => sum + one, 0);
  }

  /** @param {number} share */
  quantileText(share) {
    const value = quantile(share, this.bounds, this.counts);
    if (value === null) return "–";
    return Number.isFinite(value) ? this.format(value) : `> ${this.format(this.bounds[this.bounds.length - 1])}`;
  }

  table() {
    return [
      ["≤", t("base.count")],
      ...this.counts.map((count, index) => [index < this.bounds.length ? this.format(this.bounds[index]) : "∞", count]),
    ];
  }

  summary() {
    return QUANTILES.map((share) => `p${share * 100} ${this.quantileText(share)}`).join(", ");
  }

  /** @param {import("./frame.js").Drawing} drawing */
  draw({ pen, width, height, colour }) {
    this.showLegend(
      QUANTILES.map((share) => ({ name: `p${Math.round(share * 100)}`, value: this.quantileText(share) })),
    );
    const first = this.counts.findIndex((count) => count > 0);
    if (first < 0) return drawNothing(pen, width, height, colour("--muted"));
    const last = this.counts.findLastIndex((count) => count > 0);
    const from = Math.max(0, first - 1);
    const to = Math.min(this.counts.length, Math.max(last + 2, from + 8));
    const shown = this.counts.slice(from, to);
    const slot = width / shown.length;
    const highest = Math.max(...shown);
    shown.forEach((count, index) => {
      const tall = (height - TOP - BOTTOM) * (count / highest);
      pen.fillStyle = colour(this.colour);
      pen.globalAlpha = 0.75;
      if (count) pen.fillRect(index * slot + 1, height - BOTTOM - Math.max(1.5, tall), slot - 2, Math.max(1.5, tall));
      pen.globalAlpha = 1;
    });
    pen.fillStyle = colour("--line");
    pen.fillRect(0, height - BOTTOM, width, 1);
    this.drawBounds({ pen, height, colour, slot, from, shown });
    this.drawQuantiles({ pen, height, width, colour, slot, from, to });
    return undefined;
  }

  /** @param {any} drawing */
  drawBounds({ pen, height, colour, slot, from, shown }) {
    pen.fillStyle = colour("--muted");
    pen.textAlign = "right";
    pen.textBaseline = "alphabetic";
    const every = Math.ceil(52 / slot);
    for (let index = every - 1; index < shown.length; index += every) {
      const bound = this.bounds[from + index];
      if (bound !== undefined) pen.fillText(this.format(bound), (index + 1) * slot - 1, height - 4);
    }
  }

  /** @param {any} drawing */
  drawQuantiles({ pen, height, width, colour, slot, from, to }) {
    let free = 0; // where the next label may begin
    for (const share of QUANTILES) {
      const value = quantile(share, this.bounds, this.counts);
      if (value === null || !Number.isFinite(value)) continue;
      const bucket = this.bounds.findIndex((bound) => value <= bound);
      const low = bucket ? this.bounds[bucket - 1] : 0;
      const x = (bucket - from + (value - low) / (this.bounds[bucket] - low)) * slot;
      if (bucket >= to) continue;
      pen.fillStyle = colour("--ink");
      pen.fillRect(Math.round(x), TOP - 6, 1, height - TOP - BOTTOM + 6);
      const label = `p${Math.round(share * 100)}`;
      const wide = pen.measureText(label).width;
      const at = Math.min(width - wide, Math.max(free, x - wide / 2));
      pen.textAlign = "left";
      pen.fillText(label, at, TOP - 10);
      free = at + wide + 5;
    }
  }
}

/** @param {CanvasRenderingContext2D} pen @param {number} width @param {number} height @param {string} colour */
function drawNothing(pen, width, height, colour) {
  pen.fillStyle = colour;
  pen.textAlign = "center";
  pen.textBaseline = "middle";
  pen.fillText(t("base.no_samples"), width / 2, height / 2);
}
