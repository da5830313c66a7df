import assert from "node:assert/strict";
import { test } from "node:test";
import { installDocument, shape } from "./dom.js";

installDocument({ "base.copy": "Copy", "base.copied": "Copied" });
const { blocksOf, MarkdownView, renderMarkdown } =
  await import("../../../web/trivet_web/console/pages/playground/markdown.js");
const { inlineNodes } = await import("../../../web/trivet_web/console/pages/playground/markdown_inline.js");

const inline = (text) => inlineNodes(text).map(shape);
const walk = (node) => [node, ...node.children.flatMap(walk)];

test("what looks like HTML is text", () => {
  const text = '<img src=x onerror="alert(1)"><script>alert(1)</script>';
  assert.deepEqual(shape(renderMarkdown(text)), ["div", ["p", text]]);
});

for (const address of [
  "javascript:alert(1)",
  "JaVaScRiPt:alert(1)",
  "data:text/html,x",
  "vbscript:x",
  "//evil",
  "/logout",
  "file:///etc/passwd",
]) {
  test(`a link to ${address} is no link`, () => {
    const nodes = walk(renderMarkdown(`[click](${address})`));
    assert.equal(nodes.filter((node) => node.tag === "a").length, 0);
    assert.match(renderMarkdown(`[click](${address})`).textContent, /click \(/);
  });
}

test("a link to the web opens elsewhere and tells nothing", () => {
  const [link] = walk(renderMarkdown("see [this](https://a.example/b)")).filter((node) => node.tag === "a");
  assert.equal(link.getAttribute("href"), "https://a.example/b");
  assert.equal(link.getAttribute("target"), "_blank");
  assert.match(link.getAttribute("rel"), /noopener.*noreferrer/);
});

test("an image is a word, not a request", () => {
  assert.deepEqual(inline("![a cat](https://evil.example/x.png)"), [["span", "a cat"]]);
});

test("controls that reorder text are shown by their names", () => {
  assert.equal(renderMarkdown("a\u202eb").textContent, "a⟨U+202E⟩b");
  assert.equal(renderMarkdown("```\na\u2066b\u001b[31m\n```").textContent.startsWith("a⟨U+2066⟩b"), true);
});

test("emphasis, code and their escapes", () => {
  assert.deepEqual(inline("**a** *b* `c*d*` ~~e~~ \\*f\\*"), [
    ["strong", "a"],
    " ",
    ["em", "b"],
    " ",
    ["code", "c*d*"],
    " ",
    ["s", "e"],
    " ",
    "*",
    "f",
    "*",
  ]);
  assert.deepEqual(inline("snake_case_name and 2 * 3 * 4"), ["snake_case_name and 2 * 3 * 4"]);
});

test("headings, lists, tables and quotes", () => {
  assert.deepEqual(shape(renderMarkdown("# T\ntext")), ["div", ["h3", "T"], ["p", "text"]]);
  assert.deepEqual(shape(renderMarkdown("- a\n  - b\n- c")), [
    "div",
    ["ul", ["li", "a", ["ul", ["li", "b"]]], ["li", "c"]],
  ]);
  assert.equal(shape(renderMarkdown("2. a\n3. b"))[1][0], "ol");
  assert.deepEqual(shape(renderMarkdown("|a|b|\n|-|-|\n|1|2|"))[1][1][2], ["tbody", ["tr", ["td", "1"], ["td", "2"]]]);
  assert.deepEqual(shape(renderMarkdown("> q")), ["div", ["blockquote", ["p", "q"]]]);
});

test("a fence is one block while it is open and after", () => {
  assert.deepEqual(blocksOf("```js\na\n\nb"), ["```js\na\n\nb"]);
  assert.deepEqual(blocksOf("x\n```\na\n```\ny"), ["x", "```\na\n```", "y"]);
});

test("of a text that grows only the last block is made anew", () => {
  const view = new MarkdownView();
  view.show("one\n\ntwo");
  const first = view.node.children[0];
  view.show("one\n\ntwo and more");
  assert.equal(view.node.children[0], first);
  assert.equal(view.node.children.length, 2);
  assert.equal(view.node.children[1].textContent, "two and more");
});

test("a long line of marks takes no long time", () => {
  const begun = performance.now();
  for (const text of ["*".repeat(5000), "[".repeat(5000), "`".repeat(5000), "_a".repeat(3000), "**a".repeat(3000)])
    renderMarkdown(text);
  assert.ok(performance.now() - begun < 10_000);
});

for (const [what, text] of [
  ["an image whose data still come", "![plot](data:image/png;base64," + "A".repeat(60_000)],
  ["links without an end", "[a](".repeat(5_000)],
  ["links without an end, with titles", "[a](b c".repeat(3_000)],
  ["brackets", "[".repeat(60_000)],
  ["back quotes", "a " + "`".repeat(60_000)],
  ["back quotes by turns", "`a``b".repeat(10_000)],
  ["stars", "**a ".repeat(15_000)],
  ["dashes under a table's head", "a|b\n" + "-".repeat(100_000) + "x"],
  ["dashes with gaps", "- ".repeat(50_000) + "x"],
  ["quotes in quotes", ">".repeat(50_000)],
]) {
  test(`${what} cost a moment, not minutes`, () => {
    const begun = performance.now();
    assert.ok(renderMarkdown(text).textContent.length);
    assert.ok(performance.now() - begun < 5_000); // ms; they took from ten seconds to minutes
  });
}
