// Just enough of a document for modules that build nodes: elements keep what they are given.

class FakeNode {
  constructor() {
    this.children = [];
    this.attributes = new Map();
    this.style = {};
    this.dataset = {};
    this.listeners = {};
    this.classList = { toggle: () => undefined };
  }
  append(...given) {
    const nodes = given.map((one) => (one instanceof FakeNode ? one : new FakeText(one)));
    for (const node of nodes) node.parent = this;
    this.children.push(...nodes);
  }
  prepend(...nodes) {
    this.replaceChildren(...nodes, ...this.children);
  }
  insertBefore(node, next) {
    const place = this.children.indexOf(next);
    this.children.splice(place < 0 ? this.children.length : place, 0, node);
    node.parent = this;
  }
  contains() {
    return false;
  }
  querySelector() {
    return null;
  }
  querySelectorAll() {
    return [];
  }
  replaceChildren(...nodes) {
    this.children = [];
    this.append(...nodes);
  }
  remove() {
    this.parent.children.splice(this.parent.children.indexOf(this), 1);
  }
  setAttribute(name, value) {
    this.attributes.set(name, value);
  }
  getAttribute(name) {
    return this.attributes.get(name) ?? null;
  }
  addEventListener(name, listener) {
    this.listeners[name] = listener;
  }
  get firstElementChild() {
    return this.children[0] ?? null;
  }
  get nextElementSibling() {
    return this.parent.children[this.parent.children.indexOf(this) + 1] ?? null;
  }
  get lastElementChild() {
    return this.children.at(-1) ?? null;
  }
  get textContent() {
    return this.children.map((child) => child.textContent).join("");
  }
  set textContent(text) {
    this.replaceChildren(new FakeText(text));
  }
}

class FakeText extends FakeNode {
  constructor(data) {
    super();
    this.data = String(data);
  }
  get textContent() {
    return this.data;
  }
}

/** Puts a document into the global scope; call it before modules are imported. @param {Record<string, string>} texts */
export function installDocument(texts = {}, language = "en", sentences = {}, rights = []) {
  globalThis.Node = FakeNode;
  const nobody = { page: "", thing: null, user: null, role: null, pages: [] };
  const page = { ...nobody, rights, language, texts, sentences };
  globalThis.document = {
    createElement: (tag) => Object.assign(new FakeNode(), { tag }),
    createElementNS: (_, tag) => Object.assign(new FakeNode(), { tag }),
    createTextNode: (data) => new FakeText(data),
    querySelector: () => ({ content: JSON.stringify(page) }),
    addEventListener: () => undefined,
    hidden: false,
  };
}

/** Nested arrays of tags and texts, to compare. */
export const shape = (node) => (node instanceof FakeText ? node.data : [node.tag, ...node.children.map(shape)]);
