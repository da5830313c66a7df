import assert from "node:assert/strict";
import { test } from "node:test";
import { installDocument } from "./dom.js";

installDocument();
const { FigureHistory, ratesOf } = await import("../../../web/trivet_web/console/base/figure_history.js");
const { Rates } = await import("../../../web/trivet_web/console/base/rates.js");

const figure = (name, value, labels = {}) => ({ name, value, labels });

test("a rate is over a few samples, and none where a counter began anew", () => {
  const times = [0, 1, 2, 3];
  assert.deepEqual(ratesOf([0, 10, 20, 30], times), [null, 10, 10, 10]);
  assert.deepEqual(ratesOf([50, null, 60, 5], times), [null, null, 5, null]);
});

test("sums are by a label, and what is not sampled is a gap", () => {
  const history = new FigureHistory(["n"], 10);
  history.add(1, [figure("n", 1, { m: "a", i: "1" }), figure("n", 2, { m: "a", i: "2" }), figure("n", 7, { m: "b" })]);
  history.add(2, [figure("n", 4, { m: "a", i: "1" })]);
  const found = history.sums("n", { by: "m" });
  assert.deepEqual(
    [...found],
    [
      ["a", [3, 4]],
      ["b", [7, null]],
    ],
  );
  assert.deepEqual([...history.sums("n", { by: "m", picks: (labels) => labels.m === "b" })], [["b", [7, null]]]);
});

test("what is older than the span is let go", () => {
  const history = new FigureHistory(["n"], 2);
  for (const at of [1, 2, 3, 4, 5]) history.add(at, [figure("n", at)]);
  assert.deepEqual(history.times, [3, 4, 5]);
  assert.deepEqual([...history.sums("n")], [["", [3, 4, 5]]]);
});

test("a mean is the quotient of two rates", () => {
  const history = new FigureHistory(["s", "c"], 10);
  history.add(1, [figure("s", 0), figure("c", 0)]);
  history.add(2, [figure("s", 3), figure("c", 2)]);
  history.add(3, [figure("s", 3), figure("c", 2)]);
  assert.deepEqual([...history.quotients("s", "c")], [["", [null, 1.5, 1.5]]]);
});

test("tokens per second come from totals, and a new process begins anew", () => {
  const rates = new Rates();
  const load = (total) => [{ id: "a", load: { generation_tokens: total } }];
  rates.add(load(0), 0);
  assert.equal(rates.of("a"), null);
  rates.add(load(100), 1000);
  assert.equal(rates.of("a"), 100);
  rates.add(load(5), 2000);
  assert.equal(rates.of("a"), null);
  rates.add([], 3000);
  assert.equal(rates.total(), 0);
});
