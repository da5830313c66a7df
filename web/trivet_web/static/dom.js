// Builds DOM nodes. Text becomes text nodes, always: nothing that a model or a log says is ever markup.

/**
 * @param {string} tag
 * @param {Record<string, unknown>} [attributes] `class`, `onclick` and the like, or any attribute; null leaves it out
 * @param {...(Node | string | number | null | undefined)} children
 */
export function h(tag, attributes = {}, ...children) {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else node.setAttribute(name, value === true ? "" : String(value));
  }
  node.append(...children.filter((child) => child !== null && child !== undefined).map(asNode));
  return node;
}

const asNode = (child) => (child instanceof Node ? child : document.createTextNode(String(child)));

export const byId = (id) => document.getElementById(id);

/** Only when it differs: an unchanged node disturbs neither a selection nor a screen reader. */
export function setText(node, text) {
  if (node.textContent !== text) node.textContent = text;
}

export function setClass(node, name) {
  if (node.className !== name) node.className = name;
}

/** Keeps one child per key, in order; a child that stays is updated in place, so it keeps the focus. */
export class KeyedList {
  /**
   * @param {Element} parent
   * @param {(item: any) => {node: Element, update: (item: any) => void}} create
   */
  constructor(parent, create) {
    this.parent = parent;
    this.create = create;
    this.entries = new Map();
  }

  /** @param {any[]} items @param {(item: any) => string} keyOf */
  sync(items, keyOf) {
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
  }
}
