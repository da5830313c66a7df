// What stands inside a line of Markdown: code, emphasis, links.

import { h } from "../../base/dom.js";
import { visibleText } from "../../base/plain_text.js";

/**
 * In the order in which they are looked for at a place. Every part has a most: a look costs so much at each
 * place, whatever a model writes, and a text that grows is drawn anew 20 times a second.
 * @type {[RegExp, (found: RegExpExecArray) => Node][]}
 */
const RULES = [
  [/^(`{1,8})([^`]|[^`][\s\S]{0,1000}?[^`])\1(?!`)/, (found) => h("code", {}, visibleText(found[2]))],
  [/^!\[([^\]\n]{0,500})\]\(([^)\s]{1,2000})(?:\s[^)]{0,500})?\)/, (found) => h("span", { class: "tag" }, visibleText(found[1] || found[2]))],
  [/^\[([^\]\n]{1,500})\]\(([^)\s]{1,2000})(?:\s[^)]{0,500})?\)/, (found) => linkNode(found[2], found[1])],
  [/^(https?:\/\/[^\s<>()]{1,2000}[^\s<>().,;:!?'"])/, (found) => linkNode(found[1], found[1])],
  [/^\*\*(?=\S)([\s\S]{0,1000}?\S)\*\*/, (found) => h("strong", {}, inlineNodes(found[1]))],
  [/^__(?=\S)([\s\S]{0,1000}?\S)__(?!\w)/, (found) => h("strong", {}, inlineNodes(found[1]))],
  [/^\*(?=\S)([^*\n]{0,1000}?\S)\*/, (found) => h("em", {}, inlineNodes(found[1]))],
  [/^_(?=\S)([^_\n]{0,1000}?\S)_(?!\w)/, (found) => h("em", {}, inlineNodes(found[1]))],
  [/^~~(?=\S)([\s\S]{0,1000}?\S)~~/, (found) => h("s", {}, inlineNodes(found[1]))],
  [/^\\([!-/:-@[-`{-~])/, (found) => document.createTextNode(found[1])],
];
const STARTS = /[`!\[h*_~\\]/;
const MOST = 20_000; // characters of one line that are looked at; the rest stays as it is

/** @param {string} text @returns {Node[]} */
export function inlineNodes(text) {
  /** @type {Node[]} */
  const nodes = [];
  let plain = "";
  let at = 0;
  const flush = () => {
    if (plain) nodes.push(document.createTextNode(visibleText(plain)));
    plain = "";
  };
  while (at < Math.min(text.length, MOST)) {
    const match =
      STARTS.test(text[at]) && !(text[at] === "_" && /\w/.test(text[at - 1] ?? "")) ? matchAt(text.slice(at)) : null;
    if (match) {
      flush();
      nodes.push(match.node);
      at += match.length;
    } else {
      plain += text[at];
      at += 1;
    }
  }
  plain += text.slice(at);
  flush();
  return nodes;
}

/** @param {string} rest */
function matchAt(rest) {
  for (const [pattern, make] of RULES) {
    const found = pattern.exec(rest);
    if (found) return { node: make(found), length: found[0].length };
  }
  return null;
}

/** A link where its address is harmless, else its words and its address as text. @param {string} address @param {string} words */
function linkNode(address, words) {
  const shown = visibleText(words);
  if (!/^(https?:\/\/|mailto:)/i.test(address))
    return h("span", {}, shown, words === address ? null : ` (${visibleText(address)})`);
  return h(
    "a",
    { href: address, target: "_blank", rel: "noopener noreferrer nofollow", title: visibleText(address) },
    shown,
  );
}
