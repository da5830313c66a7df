import assert from "node:assert/strict";
import { test } from "node:test";
import { piecesOf } from "../../../web/trivet_web/console/base/ansi.js";
import { levelOf, LogLines, MOST_LINES } from "../../../web/trivet_web/console/base/log_lines.js";
import { rowsOf, WrappedRows } from "../../../web/trivet_web/console/base/wrapped_rows.js";

test("colours become classes and all other escapes are gone", () => {
  assert.deepEqual(piecesOf("\u001b[1;31mbad\u001b[0m ok \u001b[2J\u001b]0;title\u0007end"), [
    { text: "bad", classes: "ansi-1 ansi-bold" },
    { text: " ok ", classes: "" },
    { text: "end", classes: "" },
  ]);
  assert.deepEqual(piecesOf("\u001b[38;5;196mx\u001b[0m\u001b[38;2;1;2;31my"), [
    { text: "x", classes: "" },
    { text: "y", classes: "" },
  ]);
});

test("what would reorder a line is shown", () => {
  assert.equal(piecesOf("a\u202eb")[0].text, "a⟨U+202E⟩b");
});

test("a piece may end within a line, and of a progress bar its last state is kept", () => {
  const lines = new LogLines();
  lines.push("one\ntw");
  lines.push("o\n 10%\r 50%\r100%\r\n");
  assert.deepEqual(lines.shown, ["one", "two", "100%\r"]);
});

test("a filter takes words, expressions and levels, also of lines that come later", () => {
  const lines = new LogLines();
  lines.push("INFO start\nERROR no memory\nlevel=warning slow\n");
  lines.filter("MEM", "");
  assert.deepEqual(lines.shown, ["ERROR no memory"]);
  assert.equal(lines.push("more memory\nother\n"), 1);
  lines.filter("/^INFO|slow$/", "");
  assert.equal(lines.shown.length, 2);
  assert.match(lines.filter("/(/", "") ?? "", /Unterminated|Invalid/);
  lines.filter("", "warning");
  assert.deepEqual(lines.shown, ["level=warning slow"]);
  assert.deepEqual(["CRITICAL x", "nothing", "WARN y"].map(levelOf), ["error", "", "warning"]);
});

test("memory is bounded, and 100,000 lines are quick", () => {
  const lines = new LogLines();
  const begun = performance.now();
  for (let part = 0; part < 100; part += 1)
    lines.push(`${Array.from({ length: 1000 }, (_, index) => `line ${part * 1000 + index}`).join("\n")}\n`);
  assert.ok(lines.all.length <= MOST_LINES + 5000);
  assert.equal(lines.all.at(-1), "line 99999");
  assert.ok(performance.now() - begun < 5000);
});

test("a line takes as many rows as its letters need, in every script", () => {
  assert.equal(rowsOf("a".repeat(4000), 0), 1);
  assert.equal(rowsOf("", 10), 1);
  assert.deepEqual([10, 11, 20, 21].map((length) => rowsOf("a".repeat(length), 10)), [1, 2, 2, 3]);
  assert.equal(rowsOf(`\u001b[31m${"a".repeat(10)}\u001b[0m`, 10), 1);
  assert.equal(rowsOf("汉".repeat(5), 10), 1);
  assert.equal(rowsOf("汉".repeat(10), 11), 2);
  assert.equal(rowsOf("😀".repeat(6), 10), 2);
});

test("rows and lines are found from each other, also after more lines, others, or another width", () => {
  const index = new WrappedRows();
  const lines = ["a".repeat(25), "b", "c".repeat(15)];
  index.update(lines, 10, 4000);
  assert.equal(index.count, 6);
  assert.deepEqual([0, 2, 3, 4, 5].map((row) => index.lineAt(row)), [0, 0, 1, 2, 2]);
  assert.deepEqual([0, 1, 2].map((line) => index.rowOf(line)), [0, 3, 4]);
  lines.push("d");
  index.update(lines, 10, 4000);
  assert.deepEqual([index.count, index.lineAt(6)], [7, 3]);
  index.update(lines, 100, 4000);
  assert.equal(index.count, 4);
  index.update(["x"], 100, 4000);
  assert.deepEqual([index.count, index.lineAt(9)], [1, 0]);
  index.update([], 100, 4000);
  assert.deepEqual([index.count, index.lineAt(0)], [0, 0]);
});
