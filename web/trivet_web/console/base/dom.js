// Builds DOM nodes. Text becomes text nodes, always: nothing that a model, a log or a user says is ever markup.

/** @typedef {Node | string | number | null | undefined | false} Child */

/**
 * @param {string} tag
 * @param {Record<string, any>} [attributes] any attribute; `onclick` and the like add a listener; null, undefined
 *   and false leave one out
 * @param {...(Child | Child[])} children
 * @returns {any} an HTMLElement of that tag
 */
export function h(tag, attributes = {}, ...children) {
  const node = document.createElement(tag);
  setAttributes(node, attributes);
  node.append(...children.flat().filter(isShown).map(asNode));
  return node;
}

/**
 * As `h`, for SVG.
 *
 * @param {string} tag
 * @param {Record<string, any>} [attributes]
 * @param {...(Child | Child[])} children
 * @returns {any} an SVGElement
 */
export function svg(tag, attributes = {}, ...children) {
  const node = document.createElementNS("http://www.w3.org/2000/svg", tag);
  setAttributes(node, attributes);
  node.append(...children.flat().filter(isShown).map(asNode));
  return node;
}

/** @param {Element} node @param {Record<string, any>} attributes */
function setAttributes(node, attributes) {
  for (const [name, value] of Object.entries(attributes)) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else node.setAttribute(name, value === true ? "" : String(value));
  }
}

/** @param {Child} child */
const isShown = (child) => child !== null && child !== undefined && child !== false;

/** @param {any} child @returns {Node} */
const asNode = (child) => (child instanceof Node ? child : document.createTextNode(String(child)));

const ICONS = new URL("../shell/icons.svg", import.meta.url).pathname;

/** @param {string} name of a symbol in shell/icons.svg */
export const icon = (name) =>
  svg("svg", { class: "icon", "aria-hidden": "true" }, svg("use", { href: `${ICONS}#${name}` }));

/** The element with that id, which the page has. @param {string} id @returns {any} */
export function byId(id) {
  const found = document.getElementById(id);
  if (!found) throw new Error(`the page has no element #${id}`);
  return found;
}

/** Only where it differs: an unchanged node disturbs neither a selection nor a screen reader.
 * @param {Node} node @param {string} text */
export function setText(node, text) {
  if (node.textContent !== text) node.textContent = text;
}

/** @param {Element} node @param {string} name @param {string} value */
export function setAttribute(node, name, value) {
  if (node.getAttribute(name) !== value) node.setAttribute(name, value);
}

/** Says it to screen readers, once they are free. @param {string} text */
export const announce = (text) => setText(byId("announcer"), text);

/**
 * Keeps one child per key, in order; a child that stays is updated in place, so it keeps focus and selection.
 *
 * @template Item
 */
export class KeyedList {
  /**
   * @param {Element} parent
   * @param {(item: Item) => {node: Element, update: (item: Item) => void}} create
   */
  constructor(parent, create) {
    this.parent = parent;
    this.create = create;
    /** @type {Map<string, {node: Element, update: (item: Item) => void}>} */
    this.entries = new Map();
  }

  /** @param {Item[]} items @param {(item: Item) => string} keyOf */
  sync(items, keyOf) {
    const focused = /** @type {HTMLElement | null} */ (document.activeElement); // a node that is moved loses it
    const keys = new Set(items.map(keyOf));
    for (const [key, entry] of this.entries) {
      if (keys.has(key)) continue;
      entry.node.remove();
      this.entries.delete(key);
    }
    let place = this.parent.firstElementChild;
    for (const item of items) {
      const key = keyOf(item);
      let entry = this.entries.get(key);
      if (!entry) {
        entry = this.create(item);
        this.entries.set(key, entry);
      }
      entry.update(item);
      if (entry.node === place) place = place.nextElementSibling;
      else this.parent.insertBefore(entry.node, place);
    }
    if (focused !== document.activeElement && this.parent.contains(focused)) focused?.focus({ preventScroll: true });
  }
}
