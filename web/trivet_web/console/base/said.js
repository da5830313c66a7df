// What the server says, in the reader's language where it is one of the sentences that are known; else as it
// is, and marked as English, so that it is read out and looked up as that (WCAG 3.1.2).

import { h } from "./dom.js";
import { pageData } from "./page_data.js";

const MOST_KEPT = 500;
const PLACE = /\{(\w+)\}/g;

/** @type {{pattern: RegExp, names: string[], own: string}[] | null} */
let known = null;
/** @type {Map<string, string | null>} */
const kept = new Map();

function sentences() {
  known ??= Object.entries(pageData.sentences ?? {}).map(([english, own]) => ({
    pattern: new RegExp(`^${english.split(PLACE).map(partOf).join("")}$`, "s"),
    names: [...english.matchAll(PLACE)].map((found) => found[1]),
    own,
  }));
  return known;
}

/** Of a split by PLACE every other part is a name. @param {string} part @param {number} index */
const partOf = (part, index) => (index % 2 ? "(.+?)" : part.replace(/[\\^$.*+?()[\]{}|]/g, "\\$&"));

/** @param {string} text @returns {string | null} null: it is none of them */
function translated(text) {
  const before = kept.get(text);
  if (before !== undefined) return before;
  if (kept.size > MOST_KEPT) kept.clear();
  let result = null;
  for (const { pattern, names, own } of sentences()) {
    const found = pattern.exec(text);
    if (!found) continue;
    const values = Object.fromEntries(names.map((name, index) => [name, found[index + 1]]));
    result = own.replace(PLACE, (_, name) => said(values[name])); // a reason may be a sentence itself
    break;
  }
  kept.set(text, result);
  return result;
}

/** In the reader's language where it is known. @param {string} text of the server @returns {string} */
export const said = (text) => translated(text) ?? text;

/** Of what is not translated. @param {string} text @returns {string | null} for the attribute `lang` */
export const languageOf = (text) => (pageData.language === "en" || !text || translated(text) !== null ? null : "en");

/** @param {HTMLElement} node @param {string} text of the server */
export function setSaid(node, text) {
  const [own, language] = [said(text), languageOf(text)];
  if (node.textContent !== own) node.textContent = own;
  if (language) node.lang = language;
  else node.removeAttribute("lang");
}

/** An element with it. @param {string} tag @param {Record<string, any>} attributes @param {string} text of the server */
export const saidNode = (tag, attributes, text) => h(tag, { ...attributes, lang: languageOf(text) }, said(text));
