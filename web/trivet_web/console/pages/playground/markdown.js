// Markdown of models, as DOM nodes. Never markup: what looks like HTML is text. Images are not loaded, links
// lead to http, https and mailto only, in a tab that knows nothing of this one.

import { copyButton } from "../../base/copy.js";
import { h } from "../../base/dom.js";
import { visibleText } from "../../base/plain_text.js";
import { inlineNodes } from "./markdown_inline.js";

/** @param {string} text */
export function renderMarkdown(text) {
  const view = new MarkdownView();
  view.show(text);
  return view.node;
}

/** A text that grows: only its last blocks are made anew. */
export class MarkdownView {
  constructor() {
    this.node = h("div", { class: "markdown" });
    /** @type {string[]} */
    this.blocks = [];
  }

  /** @param {string} text */
  show(text) {
    const blocks = blocksOf(text);
    let same = 0;
    while (same < blocks.length && blocks[same] === this.blocks[same]) same += 1;
    while (this.node.children.length > same) this.node.lastElementChild.remove();
    for (const block of blocks.slice(same)) this.node.append(blockNode(block));
    this.blocks = blocks;
  }
}

const FENCE = /^ {0,3}(`{3,}|~{3,})(.*)$/;

/** Parts between empty lines; a fence is one part, also while it is open. @param {string} text @returns {string[]} */
export function blocksOf(text) {
  /** @type {string[]} */
  const blocks = [];
  /** @type {string[]} */
  let lines = [];
  /** @type {string | null} */
  let fence = null;
  const end = () => {
    if (lines.length) blocks.push(lines.join("\n"));
    lines = [];
  };
  for (const line of text.split("\n")) {
    const mark = FENCE.exec(line)?.[1];
    if (fence !== null) {
      lines.push(line);
      if (mark?.startsWith(fence) && line.trim() === mark) {
        fence = null;
        end();
      }
    } else if (mark) {
      end();
      fence = mark;
      lines.push(line);
    } else if (!line.trim()) end();
    else {
      if (/^#{1,6} /.test(line)) end();
      lines.push(line);
      if (/^#{1,6} /.test(line)) end();
    }
  }
  end();
  return blocks;
}

const MOST_QUOTES = 20; // one in the other

/** @param {string} line between a table's head and its rows */
const isRuler = (line) => line.includes("-") && [...line].every((sign) => " :|-".includes(sign));

/** @param {string} block @param {number} [depth] of quotes around it @returns {Node} */
function blockNode(block, depth = 0) {
  const lines = block.split("\n");
  const heading = /^(#{1,6}) +(.*)$/.exec(lines[0]);
  if (FENCE.test(lines[0])) return fenceNode(lines);
  if (heading) return h(`h${Math.min(6, heading[1].length + 2)}`, {}, inlineNodes(heading[2]));
  if (/^ {0,3}([-*_])( *\1){2,} *$/.test(block)) return h("hr");
  if (depth < MOST_QUOTES && lines.every((line) => /^ {0,3}>/.test(line))) {
    const quoted = lines.map((line) => line.replace(/^ {0,3}> ?/, "")).join("\n");
    return h(
      "blockquote",
      {},
      blocksOf(quoted).map((inner) => blockNode(inner, depth + 1)),
    );
  }
  if (LIST.test(lines[0])) return listNode(lines);
  if (lines.length > 1 && isRuler(lines[1]) && lines[0].includes("|")) return tableNode(lines);
  return h(
    "p",
    {},
    lines.flatMap((line, index) => [index > 0 && h("br"), ...inlineNodes(line)]),
  );
}

/** @param {string[]} lines */
function fenceNode(lines) {
  const [, mark, language] = /** @type {RegExpExecArray} */ (FENCE.exec(lines[0]));
  const isClosed = lines.length > 1 && lines[lines.length - 1].trim().startsWith(mark);
  const code = lines.slice(1, isClosed ? -1 : undefined).join("\n");
  return h(
    "div",
    { class: "code-block" },
    language.trim() && h("span", { class: "code-language quiet" }, visibleText(language.trim().slice(0, 30))),
    h("pre", { tabindex: "0" }, visibleText(code)),
    copyButton(() => code),
  );
}

const LIST = /^( *)(?:[-*+]|(\d{1,9})[.)]) +(.*)$/;

/** A list and the lists in it, by indentation. @param {string[]} lines */
function listNode(lines) {
  const first = /** @type {RegExpExecArray} */ (LIST.exec(lines[0]));
  const list = h(first[2] ? "ol" : "ul", { start: first[2] && first[2] !== "1" ? first[2] : null });
  /** @type {string[]} */
  let inner = [];
  const endItem = () => {
    const item = list.lastElementChild;
    if (!item || !inner.length) return;
    if (LIST.test(inner[0])) item.append(listNode(inner));
    else item.append(h("br"), ...inlineNodes(inner.join(" ")));
    inner = [];
  };
  for (const line of lines) {
    const item = LIST.exec(line);
    if (item && item[1].length <= first[1].length) {
      endItem();
      list.append(h("li", {}, inlineNodes(item[3])));
    } else inner.push(item ? line : line.trim());
  }
  endItem();
  return list;
}

/** @param {string[]} lines */
function tableNode(lines) {
  const cells = (/** @type {string} */ line) =>
    line
      .trim()
      .replace(/^\||\|$/g, "")
      .split("|")
      .map((cell) => cell.trim());
  const [head, , ...rows] = lines.map(cells);
  const table = h(
    "table",
    {},
    h(
      "thead",
      {},
      h(
        "tr",
        {},
        head.map((cell) => h("th", { scope: "col" }, inlineNodes(cell))),
      ),
    ),
    h(
      "tbody",
      {},
      rows.map((row) =>
        h(
          "tr",
          {},
          row.map((cell) => h("td", {}, inlineNodes(cell))),
        ),
      ),
    ),
  );
  return h("div", { class: "table-scroll", tabindex: "0" }, table);
}
