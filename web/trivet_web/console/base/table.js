// A table that stays up to date in place: sorting and filter in the address, states, CSV, acts on several rows.
// Only so many rows are in the page; the rest are a button away.

import { downloadCsv } from "./csv.js";
import { h, icon, KeyedList, setAttribute, setText } from "./dom.js";
import { bindFilter, filterOf, matches, setFilter } from "./filters.js";
import { DataPlace } from "./states.js";
import { t, tn } from "./texts.js";

const FIRST_ROWS = 200;
const collator = new Intl.Collator(undefined, { numeric: true }); // ten times as fast as localeCompare

/**
 * @template Item
 * @typedef {object} Column
 * @property {string} key in the address and in CSV
 * @property {string} title
 * @property {(item: Item) => string | number | null | undefined} value to sort, to filter and to see a change by
 * @property {(item: Item, now: () => Item) => Node | string} [cell] what is shown; without it the value.
 *   It is drawn again when the value changes, so what it does at a click reads the item by `now`
 * @property {boolean} [isNumber]
 * @property {string} [class]
 * @property {boolean} [isPlain] a column of actions: not sorted, not in CSV
 * @property {Node} [head] in the place of the title
 */

/** @template Item */
export class LiveTable {
  /**
   * @param {HTMLElement} parent whose content it replaces
   * @param {{columns: Column<Item>[], keyOf: (item: Item) => string, label: string, empty: string,
   *   emptyAction?: () => Node, sort?: string, selection?: import("./selection.js").Selection<Item> | null,
   *   onRow?: (row: HTMLElement, item: Item) => void}} given
   *   `sort` is a column's key, with `-` before it for descending
   */
  constructor(parent, { columns, keyOf, label, empty, emptyAction, sort = "", selection = null, onRow }) {
    /** @type {Column<Item>[]} */
    this.columns = selection ? [selection.column(() => this.shown), ...columns] : columns;
    this.selection = selection;
    this.mostRows = FIRST_ROWS;
    this.keyOf = keyOf;
    this.label = label;
    this.emptyText = empty;
    this.emptyAction = emptyAction;
    this.onRow = onRow;
    this.sort = filterOf("sort") || sort;
    this.filter = "";
    /** @type {((item: Item) => boolean) | null} */
    this.picks = null;
    /** @type {Item[]} */
    this.items = [];
    this.hasItems = false; // else what is loading would be called empty
    this.heads = this.columns.map((column) => this.head(column));
    this.body = h("tbody");
    const table = h("table", { "aria-label": label }, h("thead", {}, h("tr", {}, this.heads)), this.body);
    this.more = h("button", { type: "button", class: "ghost", hidden: true, onclick: () => this.showMore() });
    this.place = new DataPlace(
      parent,
      h(
        "div",
        {},
        selection?.bar,
        h("div", { class: "table-scroll", tabindex: "0", role: "region", "aria-label": label }, table),
        this.more,
      ),
    );
    /** When it was read last, in milliseconds. */
    this.asOf = 0;
    this.rows = new KeyedList(this.body, (item) => this.row(item));
    this.showOrder();
  }

  /** @param {Iterable<Item>} items */
  show(items) {
    this.items = [...items];
    this.hasItems = true;
    if (this.asOf) this.place.stale(null);
    this.asOf = Date.now();
    this.selection?.keep(this.items);
    this.draw();
  }

  /** Only rows with all of these words. @param {string} words */
  filterBy(words) {
    this.filter = words.trim();
    this.refresh();
  }

  /** A field for words that rows must have, kept in the address. */
  filterField() {
    const field = h("input", {
      type: "search",
      name: "filter",
      placeholder: t("base.filter"),
      "aria-label": t("base.filter"),
      autocomplete: "off",
      spellcheck: "false",
    });
    bindFilter(field, (words) => this.filterBy(words));
    return field;
  }

  /** Only rows that `picks` takes. @param {(item: Item) => boolean} picks */
  pick(picks) {
    this.picks = picks;
    this.refresh();
  }

  /** Rows that are there stay, as old ones, while the server cannot be asked. @param {import("./api.js").ApiError} error @param {() => void} [retry] */
  fail(error, retry) {
    const isRefused = error.status >= 400 && error.status < 500;
    if (this.hasItems && !isRefused) this.place.stale(this.asOf);
    else this.place.fail(error, retry);
  }

  /** All that the filter takes, in their order. @returns {Item[]} */
  get shown() {
    const found = this.items.filter(
      (item) => (!this.picks || this.picks(item)) && (!this.filter || matches(this.textOf(item), this.filter)),
    );
    const column = this.columns.find((one) => one.key === this.sort.replace(/^-/, ""));
    if (!column) return found;
    const sign = this.sort.startsWith("-") ? -1 : 1;
    return found.sort((a, b) => sign * compare(column.value(a), column.value(b)));
  }

  /** The rows again, for what goes on by itself; nothing is "empty" before there was an answer. */
  refresh() {
    if (this.hasItems) this.draw();
  }

  draw() {
    const shown = this.shown;
    this.rows.sync(shown.slice(0, this.mostRows), this.keyOf);
    this.more.hidden = shown.length <= this.mostRows;
    if (!this.more.hidden) setText(this.more, tn("base.more_rows", shown.length - this.mostRows));
    if (shown.length) this.place.show();
    else if (this.items.length) this.place.empty(t("base.nothing_matches"));
    else this.place.empty(this.emptyText, this.emptyAction?.());
  }

  showMore() {
    this.mostRows *= 5;
    this.draw();
  }

  /** @param {string} name of the file */
  download(name) {
    const columns = this.columns.filter((column) => !column.isPlain);
    const rows = this.shown.map((item) => columns.map((column) => column.value(item)));
    downloadCsv(name, [columns.map((column) => column.key), ...rows]);
  }

  /** @param {Item} item */
  textOf(item) {
    return this.columns.map((column) => (column.isPlain ? "" : (column.value(item) ?? ""))).join(" ");
  }

  /** @param {Column<Item>} column */
  head(column) {
    const name = `${column.isNumber ? "number" : ""} ${column.class ?? ""}`.trim();
    if (column.head) return h("th", { scope: "col", class: name || null }, column.head);
    if (column.isPlain)
      return h("th", { scope: "col", class: name || null }, h("span", { class: "visually-hidden" }, column.title));
    const button = h(
      "button",
      { type: "button", class: "sort", onclick: () => this.order(column) },
      column.title,
      icon("down"),
    );
    return h("th", { scope: "col", class: name || null }, button);
  }

  /** @param {Column<Item>} column */
  order(column) {
    const first = column.isNumber ? `-${column.key}` : column.key;
    const second = column.isNumber ? column.key : `-${column.key}`;
    this.sort = this.sort === first ? second : first;
    setFilter("sort", this.sort);
    this.showOrder();
    this.draw();
  }

  showOrder() {
    this.columns.forEach((column, index) => {
      if (column.isPlain) return;
      const isSorted = this.sort.replace(/^-/, "") === column.key;
      const order = !isSorted ? "none" : this.sort.startsWith("-") ? "descending" : "ascending";
      setAttribute(this.heads[index], "aria-sort", order);
    });
  }

  /** @param {Item} first */
  row(first) {
    const cells = this.columns.map((column) =>
      h("td", { class: `${column.isNumber ? "number" : ""} ${column.class ?? ""}`.trim() || null }),
    );
    const node = h("tr", {}, cells);
    /** @type {any[]} */
    const values = this.columns.map(() => undefined);
    this.onRow?.(node, first);
    let newest = first;
    const now = () => newest;
    const update = (/** @type {Item} */ item) => {
      newest = item;
      this.columns.forEach((column, index) => {
        const value = column.value(item);
        if (value === values[index] && values[index] !== undefined) return;
        values[index] = value ?? "";
        replaceInside(cells[index], column.cell ? column.cell(item, now) : String(value ?? "–"));
      });
    };
    return { node, update };
  }
}

/** A focused button gives its focus to the one in its place. @param {HTMLElement} cell @param {Node | string} content */
function replaceInside(cell, content) {
  const controls = () => [...cell.querySelectorAll("a, button, input")];
  const focused = controls().indexOf(/** @type {Element} */ (document.activeElement));
  cell.replaceChildren(content);
  if (focused >= 0) /** @type {HTMLElement | undefined} */ (controls()[focused])?.focus({ preventScroll: true });
}

/** @param {any} a @param {any} b nothing comes first */
function compare(a, b) {
  if (a === b) return 0;
  if (a === null || a === undefined) return -1;
  if (b === null || b === undefined) return 1;
  return typeof a === "string" ? collator.compare(a, String(b)) : a - b;
}
