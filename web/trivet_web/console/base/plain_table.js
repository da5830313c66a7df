// A table that is drawn once: no sorting, no filter. table.js has those that live.

import { h } from "./dom.js";

/** @typedef {Node | string | number} Cell */

/**
 * @param {string} label for who hears it
 * @param {[string, string?][]} heads title, and the class of the column's cells, such as "number"
 * @param {Cell[][]} rows
 * @param {(index: number) => Record<string, any>} [attributesOf] of a row
 * @returns {HTMLElement} which scrolls sideways where it is narrow
 */
export function plainTable(label, heads, rows, attributesOf = () => ({})) {
  const head = heads.map(([title, kind]) => h("th", { scope: "col", class: kind || null }, title));
  const body = rows.map((cells, index) =>
    h(
      "tr",
      attributesOf(index),
      cells.map((cell, column) => h("td", { class: heads[column][1] || null }, cell)),
    ),
  );
  const table = h("table", { "aria-label": label }, h("thead", {}, h("tr", {}, head)), h("tbody", {}, body));
  return h("div", { class: "table-scroll", tabindex: "0", role: "region", "aria-label": label }, table);
}
