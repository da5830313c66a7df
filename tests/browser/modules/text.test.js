import assert from "node:assert/strict";
import { test } from "node:test";
import { installDocument } from "./dom.js";

installDocument({
  "base.just_now": "just now",
  "x.one": "{a} and {b}",
  "x.n_one": "{count} thing",
  "x.n_other": "{count} things",
});
const { visibleText, withoutEscapes } = await import("../../../web/trivet_web/console/base/plain_text.js");
const { csvOf } = await import("../../../web/trivet_web/console/base/csv.js");
const { ago, bytes, duration } = await import("../../../web/trivet_web/console/base/format.js");
const { t, tn } = await import("../../../web/trivet_web/console/base/texts.js");
const { matches } = await import("../../../web/trivet_web/console/base/filters.js");

test("a terminal's escapes are taken away", () => {
  assert.equal(withoutEscapes("\u001b[31mred\u001b[0m \u001b]0;title\u0007x\u001b[2J"), "red x");
});

test("what would hide or reorder is shown", () => {
  assert.equal(visibleText("a\u202eb\u0000c"), "a⟨U+202E⟩b⟨U+0000⟩c");
  assert.equal(visibleText("tab\tand\nline 你好"), "tab\tand\nline 你好");
});

test("a spreadsheet computes no cell", () => {
  assert.equal(
    csvOf([
      ["a", 1],
      ["=1+1", -2],
      ['q"', "x,y"],
    ]),
    'a,1\r\n\'=1+1,-2\r\n"q""","x,y"\r\n',
  );
});

test("sizes and times are as people read them", () => {
  assert.deepEqual(
    [bytes(0), bytes(1536), bytes(360 * 2 ** 20), bytes(1023.7 * 2 ** 20), bytes(null)],
    ["0 B", "1.5 KiB", "360 MiB", "1 GiB", "–"],
  );
  assert.deepEqual(
    [duration(0.0005), duration(0.084), duration(1.25), duration(754), duration(7260), duration(null)],
    ["500 µs", "84 ms", "1.3 s", "12 min", "2 h 1 min", "–"],
  );
  assert.equal(ago(new Date(1000).toISOString(), 61_000), "1 min. ago");
});

test("a text has its places filled, and a missing one is told", () => {
  assert.equal(t("x.one", { a: 1 }), "1 and {b}");
  assert.equal(tn("x.n", 1), "1 thing");
  assert.equal(tn("x.n", 1200), "1,200 things");
  assert.throws(() => t("x.none"), /no text x.none/);
});

test("each word of a filter must be there", () => {
  assert.ok(matches("Qwen3 ready cuda", "READY qwen"));
  assert.ok(!matches("Qwen3 ready", "failed"));
});
