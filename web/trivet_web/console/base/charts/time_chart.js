// Series over time, as lines or stacked areas. The cursor is shared by all charts of a page with one `group`.

import { bytes, count, fullTime, rate, timeOfDay } from "../format.js";
import { t } from "../texts.js";
import { ChartFrame, drawGrid } from "./frame.js";
import { byteTicks, ticks, timeTicks } from "./scale.js";

/**
 * @typedef {object} TimeSeries
 * @property {string} name
 * @property {string} [colour] a custom property; else by its place
 * @property {(number | null)[]} values one for each time; null where nothing is known
 */

const LEAST_MS = 2000; // of a closer look
const LEFT = 52;
const RIGHT = 8;
const TOP = 8;
const BOTTOM = 20;

/** Charts that move together: where the pointer is, and which span is looked at. */
export class TimeGroup {
  constructor() {
    /** @type {TimeChart[]} */
    this.charts = [];
    /** @type {number | null} milliseconds */
    this.cursor = null;
    /** @type {((from: number, to: number) => void) | null} */
    this.onBrush = null;
  }

  /** @param {number | null} at */
  point(at) {
    this.cursor = at;
    for (const chart of this.charts) chart.redraw();
  }
}

export class TimeChart extends ChartFrame {
  /**
   * @param {HTMLElement} parent
   * @param {{title: string, height?: number, file?: string, note?: string, isStacked?: boolean, group?: TimeGroup,
   *   format?: (value: number) => string, least?: number}} given `least` is the lowest top of the axis
   */
  constructor(parent, given) {
    super(parent, given);
    this.isStacked = given.isStacked ?? false;
    this.format = given.format ?? rate;
    this.axis = given.format && given.format !== rate && given.format !== count ? given.format : short;
    this.least = given.least ?? 1;
    this.group = given.group ?? new TimeGroup();
    this.group.charts.push(this);
    /** @type {number[]} milliseconds */
    this.times = [];
    /** @type {TimeSeries[]} */
    this.series = [];
    /** @type {[number, number] | null} */
    this.span = null;
    /** @type {number | null} */
    this.brushFrom = null;
    this.canvas.addEventListener("pointermove", (/** @type {PointerEvent} */ event) =>
      this.group.point(this.timeAt(event.offsetX)),
    );
    this.canvas.addEventListener("pointerleave", () => this.group.point(null));
    this.canvas.addEventListener("pointerdown", (/** @type {PointerEvent} */ event) => this.startBrush(event));
    this.canvas.addEventListener("pointerup", (/** @type {PointerEvent} */ event) => this.endBrush(event));
  }

  /** @param {number[]} times milliseconds, ascending @param {TimeSeries[]} series @param {[number, number]} [span] shown */
  show(times, series, span) {
    this.times = times;
    this.series = series.map((one, index) => ({ colour: `--series-${index % 8}`, ...one }));
    this.span = span ?? (times.length ? [times[0], times[times.length - 1]] : null);
    this.redraw();
  }

  table() {
    return [
      [t("base.time"), ...this.series.map((one) => one.name)],
      ...this.times
        .map((at, index) => [fullTime(at), ...this.series.map((one) => one.values[index] ?? null)])
        .reverse(),
    ];
  }

  summary() {
    return this.series.map((one) => `${one.name} ${this.format(lastOf(one.values) ?? 0)}`).join(", ");
  }

  /** @param {import("./frame.js").Drawing} drawing */
  draw(drawing) {
    const { width, height } = drawing;
    const [from, to] = this.span ?? [Date.now() - 60_000, Date.now()];
    const stacks = this.stacks();
    const marks = (this.format === bytes ? byteTicks : ticks)(
      Math.max(this.least, ...stacks.flatMap(({ tops }) => tops.map((top) => top ?? 0))),
      Math.max(2, Math.floor(height / 36)),
    );
    const highest = marks[marks.length - 1];
    const x = (/** @type {number} */ at) => LEFT + ((width - LEFT - RIGHT) * (at - from)) / Math.max(1, to - from);
    const y = (/** @type {number} */ value) => TOP + (height - TOP - BOTTOM) * (1 - value / highest);
    drawGrid(drawing, marks, y, { left: LEFT, right: RIGHT }, this.axis);
    this.drawTimes(drawing, x, from, to);
    for (const stack of [...stacks].reverse()) this.drawOne(drawing, stack, x, y);
    this.drawCursor(drawing, x);
    const index = this.cursorIndex();
    this.showLegend(
      this.series.map((one) => ({
        name: one.name,
        colour: one.colour,
        value: valueText(index === null ? lastOf(one.values) : one.values[index], this.format),
      })),
    );
  }

  /** Each series with the tops of its area, and the bottoms where it stands on others. */
  stacks() {
    /** @type {number[] | null} */
    let below = null;
    return this.series.map((one) => {
      const bottoms = below;
      const tops = one.values.map((value, index) => (value === null ? null : value + (bottoms?.[index] ?? 0)));
      if (this.isStacked) below = tops.map((top, index) => top ?? bottoms?.[index] ?? 0);
      return { one, tops, bottoms };
    });
  }

  /** @param {import("./frame.js").Drawing} drawing @param {{one: TimeSeries, tops: (number | null)[], bottoms: number[] | null}} stack
   * @param {(at: number) => number} x @param {(value: number) => number} y */
  drawOne({ pen, colour }, { one, tops, bottoms }, x, y) {
    pen.strokeStyle = pen.fillStyle = colour(one.colour ?? "--accent");
    pen.lineWidth = 1.5;
    pen.lineJoin = "round";
    for (const [start, end] of runs(tops)) {
      const line = new Path2D();
      for (let index = start; index < end; index += 1)
        line[index === start ? "moveTo" : "lineTo"](x(this.times[index]), y(/** @type {number} */ (tops[index])));
      const area = new Path2D(line);
      for (let index = end - 1; index >= start; index -= 1) area.lineTo(x(this.times[index]), y(bottoms?.[index] ?? 0));
      pen.globalAlpha = this.isStacked ? 0.28 : 0.1;
      if (this.isStacked || this.series.length === 1) pen.fill(area);
      pen.globalAlpha = 1;
      pen.stroke(line);
    }
  }

  /** @param {import("./frame.js").Drawing} drawing @param {(at: number) => number} x @param {number} from @param {number} to */
  drawTimes({ pen, width, height, colour }, x, from, to) {
    pen.fillStyle = colour("--muted");
    pen.textBaseline = "alphabetic";
    pen.textAlign = "center";
    for (const at of timeTicks(from, to, Math.max(2, Math.floor(width / 90)))) {
      const place = x(at);
      if (place > LEFT + 14 && place < width - 24)
        pen.fillText(to - from > 120_000 ? timeOfDay(at).slice(0, 5) : timeOfDay(at), place, height - 5);
    }
  }

  /** @param {import("./frame.js").Drawing} drawing @param {(at: number) => number} x */
  drawCursor({ pen, height, colour }, x) {
    const { cursor } = this.group;
    if (cursor === null || !this.span || cursor < this.span[0] || cursor > this.span[1]) return;
    pen.strokeStyle = colour("--muted");
    pen.lineWidth = 1;
    pen.beginPath();
    pen.moveTo(Math.round(x(cursor)) + 0.5, TOP);
    pen.lineTo(Math.round(x(cursor)) + 0.5, height - BOTTOM);
    pen.stroke();
    pen.fillStyle = colour("--ink");
    pen.textBaseline = "alphabetic";
    pen.textAlign = "center";
    pen.clearRect(x(cursor) - 28, height - BOTTOM + 2, 56, BOTTOM);
    pen.fillText(timeOfDay(cursor), x(cursor), height - 5);
    if (this.brushFrom === null) return;
    pen.globalAlpha = 0.15;
    pen.fillStyle = colour("--accent");
    pen.fillRect(x(this.brushFrom), TOP, x(cursor) - x(this.brushFrom), height - TOP - BOTTOM);
    pen.globalAlpha = 1;
  }

  /** @returns {number | null} the sample that is nearest to the cursor */
  cursorIndex() {
    const { cursor } = this.group;
    if (cursor === null || !this.times.length) return null;
    let best = 0;
    for (let index = 1; index < this.times.length; index += 1)
      if (Math.abs(this.times[index] - cursor) < Math.abs(this.times[best] - cursor)) best = index;
    return best;
  }

  /** @param {number} offset @returns {number | null} */
  timeAt(offset) {
    if (!this.span) return null;
    const share = (offset - LEFT) / Math.max(1, this.canvas.clientWidth - LEFT - RIGHT);
    return this.span[0] + Math.min(1, Math.max(0, share)) * (this.span[1] - this.span[0]);
  }

  /** @param {PointerEvent} event */
  startBrush(event) {
    if (!this.group.onBrush) return;
    this.canvas.setPointerCapture(event.pointerId);
    this.brushFrom = this.timeAt(event.offsetX);
  }

  /** @param {PointerEvent} event */
  endBrush(event) {
    const [from, to] = [this.brushFrom, this.timeAt(event.offsetX)].sort((a, b) => Number(a) - Number(b));
    this.brushFrom = null;
    this.redraw();
    if (from === null || to === null || from === undefined || to === undefined || !this.span) return;
    const quarter = (this.span[1] - this.span[0]) / 4;
    // A click is a way without dragging (WCAG 2.5.7): half of what is seen, around it.
    const [first, last] = to - from > LEAST_MS ? [from, to] : [from - quarter, from + quarter];
    if (last - first > LEAST_MS) this.group.onBrush?.(Math.max(first, this.span[0]), Math.min(last, this.span[1]));
  }
}

/** From where to where values are known. @param {(number | null)[]} values @returns {[number, number][]} */
function runs(values) {
  /** @type {[number, number][]} */
  const found = [];
  values.forEach((value, index) => {
    if (value === null) return;
    const last = found[found.length - 1];
    if (last && last[1] === index) last[1] = index + 1;
    else found.push([index, index + 1]);
  });
  return found;
}

/** @param {(number | null)[]} values */
const lastOf = (values) => values[values.length - 1] ?? null;

/** @param {number | null} value @param {(value: number) => string} format */
const valueText = (value, format) => (value === null ? "–" : format(value));

/** @param {number} value */
const short = (value) =>
  value >= 1e6
    ? `${+(value / 1e6).toPrecision(3)}M`
    : value >= 1000
      ? `${+(value / 1000).toPrecision(3)}k`
      : String(+value.toPrecision(3));
