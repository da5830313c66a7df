import assert from "node:assert/strict";
import { test } from "node:test";
import { byteTicks, quantile, ticks, timeTicks } from "../../../web/trivet_web/console/base/charts/scale.js";
import { shownSeries } from "../../../web/trivet_web/console/pages/metrics/shown_series.js";

test("ticks are round and reach the highest value", () => {
  assert.deepEqual(ticks(7), [0, 2, 4, 6, 8]);
  assert.deepEqual(ticks(4), [0, 1, 2, 3, 4]);
  assert.deepEqual(ticks(0.03), [0, 0.01, 0.02, 0.03]);
  assert.deepEqual(ticks(0), [0, 1]);
});

test("ticks of bytes are round in the unit that they are read in", () => {
  assert.deepEqual(byteTicks(3.5 * 2 ** 30), [0, 1, 2, 3, 4].map((one) => one * 2 ** 30));
  assert.deepEqual(byteTicks(1.2 * 2 ** 30), [0, 0.5, 1, 1.5].map((one) => one * 2 ** 30));
  assert.deepEqual(byteTicks(700), [0, 200, 400, 600, 800]);
  assert.deepEqual(byteTicks(0), [0, 1]);
});

test("ticks of time are round and inside", () => {
  const found = timeTicks(1_000_000_000_500, 1_000_000_300_500, 6);
  assert.ok(found.length >= 3 && found.length <= 7);
  assert.ok(found.every((at) => at % 60_000 === 0));
});

test("a quantile is linear within its bucket", () => {
  assert.equal(quantile(0.5, [1, 2], [0, 10, 0]), 1.5);
  assert.equal(quantile(0.5, [1, 2], [10, 10, 0]), 1);
  assert.equal(quantile(0.99, [1, 2], [1, 0, 99]), Infinity);
  assert.equal(quantile(0.5, [1, 2], [0, 0, 0]), null);
});

test("a stack of more series than colours is as high as all of them", () => {
  const found = Array.from({ length: 10 }, (_, index) => [`s${index}`, [index, null, 1]]);
  const shown = shownSeries(found, true, "others");
  assert.deepEqual(
    shown.map(([name]) => name),
    ["s3", "s4", "s5", "s6", "s7", "s8", "s9", "others"],
  );
  assert.deepEqual(shown[7][1], [0 + 1 + 2, null, 3]);
  assert.equal(shownSeries(found, false, "others").length, 10);
  assert.equal(shownSeries(found.slice(2), true, "others").length, 8);
});
