// A page in node: the elements that its module asks for, its words, and a server that answers what a test gives.

import { readFileSync } from "node:fs";
import { installDocument } from "./dom.js";

const CONSOLE = new URL("../../../web/trivet_web/console/", import.meta.url);

/** Call it before modules are imported. @param {string[]} pages whose words are needed @param {string[]} rights */
export function installPage(pages, rights) {
  const folders = ["base", "shell", ...pages.map((page) => `pages/${page}`)];
  const texts = folders.map((folder) => JSON.parse(readFileSync(new URL(`${folder}/en.json`, CONSOLE), "utf8")));
  installDocument(Object.assign({}, ...texts), "en", {}, rights);
  const named = new Map();
  document.getElementById = (id) => {
    if (!named.has(id)) named.set(id, document.createElement("div"));
    return named.get(id);
  };
  document.body = document.createElement("body");
  globalThis.location = { search: "", pathname: "/" };
  globalThis.FormData = FakeForm;
  Object.assign(Node.prototype, { showModal() {}, close() {}, querySelector: () => ({ focus() {} }) });
}

class FakeForm extends Map {
  constructor(form) {
    super();
    for (const one of all(form, "input"))
      if (one.getAttribute("type") !== "checkbox" || one.getAttribute("checked") !== null)
        this.set(one.getAttribute("name"), one.getAttribute("value") ?? "on");
    for (const one of all(form, "select"))
      for (const option of all(one, "option"))
        if (option.getAttribute("selected") !== null) this.set(one.getAttribute("name"), option.getAttribute("value"));
  }
}

/** Imports a page whose requests `answer` answers. @returns {Promise<() => Promise<void>>} reads it again */
export async function openPage(page, answer) {
  const readers = [];
  globalThis.setInterval = (read) => readers.push(read);
  globalThis.fetch = async (path, { method, body }) =>
    Response.json(await answer(method, path, body && JSON.parse(body)));
  await import(new URL(`pages/${page}/page.js`, CONSOLE));
  await settled();
  return async () => {
    readers.forEach((read) => read());
    await settled();
  };
}

/** All elements of that tag in a node, in order. @returns {any[]} */
export const all = (node, tag) =>
  node.children.flatMap((child) => [...(child.tag === tag ? [child] : []), ...all(child, tag)]);

/** Clicks the button of that word in a table's rows. @returns {Promise<any>} the dialog that it opens */
export async function click(place, word) {
  all(all(place, "tbody")[0], "button")
    .find((one) => one.textContent === word)
    .listeners.click();
  await settled();
  return document.body.lastElementChild;
}

const settled = () => new Promise((resolve) => setTimeout(resolve, 20));
