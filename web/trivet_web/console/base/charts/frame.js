// What every chart has around it: title, legend that says the values in words, "as table", CSV, redrawing.

import { downloadCsv } from "../csv.js";
import { h, icon, setAttribute, setText } from "../dom.js";
import { t } from "../texts.js";

/**
 * @typedef {object} Drawing
 * @property {CanvasRenderingContext2D} pen scaled, so that units are CSS pixels
 * @property {number} width
 * @property {number} height
 * @property {(name: string) => string} colour of a custom property such as "--accent"
 */

/** Base of charts on a canvas. A subclass has `draw`, `table` and `summary`. */
export class ChartFrame {
  /**
   * @param {HTMLElement} parent whose content it replaces
   * @param {{title: string, height?: number, file?: string, note?: string}} given `note` explains the title
   */
  constructor(parent, { title, height = 150, file = "chart", note = "" }) {
    this.title = title;
    this.file = file;
    this.canvas = h("canvas", { role: "img", "aria-label": title });
    this.canvas.style.height = `${height}px`;
    this.legend = h("ul", { class: "legend" });
    this.tableBox = h("div", {
      class: "chart-table",
      tabindex: "0",
      role: "region",
      "aria-label": title,
      hidden: true,
    });
    this.tableButton = h(
      "button",
      {
        type: "button",
        class: "ghost only-icon",
        "aria-pressed": "false",
        title: t("base.as_table"),
        "aria-label": `${t("base.as_table")}: ${title}`,
        onclick: () => this.toggleTable(),
      },
      icon("table"),
    );
    const csv = h(
      "button",
      {
        type: "button",
        class: "ghost only-icon",
        title: "CSV",
        "aria-label": `CSV: ${title}`,
        onclick: () => downloadCsv(`${file}.csv`, this.table()),
      },
      icon("download"),
    );
    this.head = h(
      "header",
      { class: "chart-head" },
      h("h2", { title: note || null }, title),
      this.legend,
      h("span", { class: "chart-tools" }, this.tableButton, csv),
    );
    parent.classList.add("chart");
    parent.replaceChildren(this.head, this.canvas, this.tableBox);
    this.parent = parent;
    this.isPlanned = false;
    new ResizeObserver(() => this.redraw()).observe(parent);
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => this.redraw());
    new MutationObserver(() => this.redraw()).observe(document.documentElement, { attributeFilter: ["data-theme"] });
  }

  /** @param {Drawing} _drawing */
  draw(_drawing) {
    throw new Error("a chart draws itself");
  }

  /** Rows, the first with the columns' names. @returns {(string | number | null)[][]} */
  table() {
    throw new Error("a chart has a table");
  }

  /** In words, for who does not see it. @returns {string} */
  summary() {
    return this.title;
  }

  /** Soon, once for all changes until then. */
  redraw() {
    if (this.isPlanned) return;
    this.isPlanned = true;
    requestAnimationFrame(() => {
      this.isPlanned = false;
      this.paint();
    });
  }

  paint() {
    if (!this.tableBox.hidden) this.fillTable();
    const width = this.canvas.clientWidth;
    const height = this.canvas.clientHeight;
    if (!width || !height) return;
    const scale = devicePixelRatio || 1;
    this.canvas.width = Math.round(width * scale);
    this.canvas.height = Math.round(height * scale);
    const pen = this.canvas.getContext("2d");
    pen.scale(scale, scale);
    const style = getComputedStyle(this.parent);
    pen.font = `11px ${style.fontFamily}`;
    const colour = (/** @type {string} */ name) => style.getPropertyValue(name).trim();
    this.draw({ pen, width, height, colour });
    setAttribute(this.canvas, "aria-label", `${this.title}: ${this.summary()}`);
  }

  toggleTable() {
    this.tableBox.hidden = !this.tableBox.hidden;
    this.canvas.hidden = !this.tableBox.hidden;
    this.tableButton.setAttribute("aria-pressed", String(!this.tableBox.hidden));
    this.tableBox.style.maxHeight = this.canvas.style.height;
    this.redraw();
  }

  fillTable() {
    const [head, ...rows] = this.table();
    this.tableBox.replaceChildren(
      h(
        "table",
        {},
        h(
          "thead",
          {},
          h(
            "tr",
            {},
            head.map((name) => h("th", { scope: "col" }, name)),
          ),
        ),
        h(
          "tbody",
          {},
          rows.map((row) =>
            h(
              "tr",
              {},
              row.map((value) => h("td", {}, value ?? "–")),
            ),
          ),
        ),
      ),
    );
  }

  /** @param {{name: string, value: string, colour?: string, isLine?: boolean}[]} entries `colour` names a custom property */
  showLegend(entries) {
    while (this.legend.children.length > entries.length) this.legend.lastElementChild.remove();
    entries.forEach(({ name, value, colour }, index) => {
      let node = this.legend.children[index];
      if (!node) this.legend.append((node = h("li", {}, h("i", { class: "dot" }), h("span"), h("b"))));
      const [dot, words, number] = node.children;
      dot.hidden = !colour;
      if (colour) dot.style.background = `var(${colour})`;
      setText(words, name);
      setText(number, value);
    });
  }
}

/** Horizontal lines with their values. @param {Drawing} drawing @param {number[]} values @param {(value: number) => number} y
 * @param {{left: number, right: number}} area @param {(value: number) => string} format */
export function drawGrid({ pen, width, colour }, values, y, { left, right }, format) {
  pen.strokeStyle = colour("--line");
  pen.fillStyle = colour("--muted");
  pen.lineWidth = 1;
  pen.textAlign = "right";
  pen.textBaseline = "middle";
  for (const value of values) {
    const line = Math.round(y(value)) + 0.5;
    pen.beginPath();
    pen.moveTo(left, line);
    pen.lineTo(width - right, line);
    pen.stroke();
    pen.fillText(format(value), left - 7, line);
  }
}
