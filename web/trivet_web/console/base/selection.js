// Rows of a table that are chosen, and what can be done with all of them at once.

import { announce, h, setText } from "./dom.js";
import { t, tn } from "./texts.js";

/**
 * @template Item
 * @typedef {object} Act
 * @property {string} word of its button
 * @property {(item: Item) => boolean} takes whether it can be done with the item
 * @property {(items: Item[]) => Promise<boolean>} run asks and does it; whether it was done
 */

/** @template Item */
export class Selection {
  /** @param {{keyOf: (item: Item) => string, nameOf: (item: Item) => string, acts: Act<Item>[]}} given */
  constructor({ keyOf, nameOf, acts }) {
    this.keyOf = keyOf;
    this.nameOf = nameOf;
    this.acts = acts;
    /** @type {Map<string, Item>} */
    this.chosen = new Map();
    /** @type {Map<string, HTMLInputElement>} */
    this.boxes = new Map();
    /** @type {() => Item[]} of the rows that the filter takes those with which something can be done */
    this.offered = () => [];
    this.count = h("b");
    this.buttons = acts.map((act) =>
      h("button", { type: "button", class: "small", onclick: () => this.run(act) }, act.word),
    );
    const clear = h(
      "button",
      { type: "button", class: "ghost small", onclick: () => this.clear() },
      t("base.unselect"),
    );
    this.bar = h("div", { class: "selection-bar row", role: "group", hidden: true }, this.count, this.buttons, clear);
    this.bar.setAttribute("aria-label", t("base.selection"));
    this.all = h("input", { type: "checkbox", "aria-label": t("base.select_all") });
  }

  /** @param {Item} item */
  isOffered(item) {
    return this.acts.some((act) => act.takes(item));
  }

  /** The first one of its table. @param {() => Item[]} shown @returns {import("./table.js").Column<Item>} */
  column(shown) {
    this.offered = () => shown().filter((item) => this.isOffered(item));
    this.all.addEventListener("change", () => {
      const items = this.all.checked ? this.offered() : [];
      this.chosen = new Map(items.map((item) => [this.keyOf(item), item]));
      this.draw();
    });
    return {
      key: "selected",
      title: t("base.select_all"),
      isPlain: true,
      class: "selects",
      head: this.all,
      value: (item) => `${this.isOffered(item)}`,
      cell: (item, now) => (this.isOffered(item) ? this.box(item, now) : ""),
    };
  }

  /** @param {Item} item @param {() => Item} now */
  box(item, now) {
    const key = this.keyOf(item);
    const box = h("input", { type: "checkbox", "aria-label": t("base.select", { name: this.nameOf(item) }) });
    box.checked = this.chosen.has(key);
    box.addEventListener("change", () => {
      if (box.checked) this.chosen.set(key, now());
      else this.chosen.delete(key);
      this.draw();
    });
    this.boxes.set(key, box);
    return box;
  }

  /** As they are now; those that are gone, or of which nothing can be done, are not chosen any more. @param {Item[]} items */
  keep(items) {
    const now = new Map(items.map((item) => [this.keyOf(item), item]));
    for (const key of this.boxes.keys()) if (!now.has(key)) this.boxes.delete(key);
    for (const key of this.chosen.keys()) {
      const item = now.get(key);
      if (item !== undefined && this.isOffered(item)) this.chosen.set(key, item);
      else this.chosen.delete(key);
    }
    this.draw();
  }

  clear() {
    this.chosen.clear();
    this.draw();
  }

  draw() {
    const number = this.chosen.size;
    for (const [key, box] of this.boxes) box.checked = this.chosen.has(key);
    this.all.checked = number > 0 && this.offered().every((item) => this.chosen.has(this.keyOf(item)));
    this.all.indeterminate = number > 0 && !this.all.checked; // then a click selects all
    if (this.bar.hidden && number) announce(tn("base.selected", number));
    this.bar.hidden = !number;
    if (number) setText(this.count, tn("base.selected", number));
  }

  /** @param {Act<Item>} act */
  async run(act) {
    const items = [...this.chosen.values()].filter((item) => act.takes(item));
    if (items.length && (await act.run(items))) this.clear();
  }
}

/**
 * Does it one after another, all of them, and then tells what failed.
 *
 * @template Item
 * @param {Item[]} items
 * @param {(item: Item) => Promise<any>} work
 * @param {(item: Item) => string} nameOf
 */
export async function doAll(items, work, nameOf) {
  const failures = [];
  for (const item of items) {
    try {
      await work(item);
    } catch (error) {
      failures.push(`${nameOf(item)}: ${/** @type {Error} */ (error).message}`);
    }
  }
  if (failures.length) throw new Error(failures.join("\n"));
}
