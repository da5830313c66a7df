// A grid of small cells: blocks of a KV cache, slots of a batch.

import { t } from "../texts.js";
import { ChartFrame } from "./frame.js";

/** @typedef {{colour: string, alpha?: number, label: string}} Cell `colour` names a custom property */

export class HeatMap extends ChartFrame {
  /** @param {HTMLElement} parent @param {{title: string, height?: number, file?: string, note?: string}} given */
  constructor(parent, given) {
    super(parent, given);
    /** @type {Cell[]} */
    this.cells = [];
    this.size = 8;
    this.perRow = 1;
    this.canvas.addEventListener("pointermove", (/** @type {PointerEvent} */ event) => this.point(event));
  }

  /** @param {Cell[]} cells @param {{name: string, value: string, colour?: string}[]} legend */
  show(cells, legend) {
    this.cells = cells;
    this.showLegend(legend);
    this.redraw();
  }

  table() {
    return [["#", t("base.value")], ...this.cells.map((cell, index) => [index, cell.label])];
  }

  summary() {
    return [...this.legend.children].map((one) => one.textContent).join(", ");
  }

  /** @param {import("./frame.js").Drawing} drawing */
  draw({ pen, width, height, colour }) {
    const area = (width * height) / Math.max(1, this.cells.length);
    this.size = Math.max(2, Math.min(12, Math.floor(Math.sqrt(area))));
    while (this.size > 2 && Math.ceil(this.cells.length / Math.floor(width / this.size)) * this.size > height)
      this.size -= 1;
    this.perRow = Math.floor(width / this.size);
    const gap = this.size > 4 ? 1 : 0;
    this.cells.forEach((cell, index) => {
      pen.fillStyle = colour(cell.colour);
      pen.globalAlpha = cell.alpha ?? 1;
      pen.fillRect(
        (index % this.perRow) * this.size,
        Math.floor(index / this.perRow) * this.size,
        this.size - gap,
        this.size - gap,
      );
    });
    pen.globalAlpha = 1;
  }

  /** @param {PointerEvent} event */
  point(event) {
    const index = Math.floor(event.offsetY / this.size) * this.perRow + Math.floor(event.offsetX / this.size);
    this.canvas.title = this.cells[index]?.label ?? "";
  }
}
