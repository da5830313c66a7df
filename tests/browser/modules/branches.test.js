import assert from "node:assert/strict";
import { test } from "node:test";
import { cutAt, instead, numBranches, switchTo } from "../../../web/trivet_web/console/pages/playground/branches.js";

const user = (content) => ({ role: "user", content });
const model = (content) => ({ role: "assistant", content });
const words = (messages) => messages.map((one) => one.content).join(" ");

function askedAgain(messages, index, message, ...rest) {
  const { before, others } = cutAt(messages, index);
  return [...before, instead(message, others), ...rest];
}

const FIRST = [user("q"), model("a1"), user("then"), model("b1")];

test("what is asked again keeps what was there, and what followed it", () => {
  const second = askedAgain(FIRST, 1, model("a2"));
  assert.equal(words(second), "q a2");
  assert.equal(numBranches(second[1]), 2);
  assert.equal(words(switchTo(second, 1, 0)), "q a1 then b1");
});

test("one can go there and back, and nothing is lost", () => {
  const third = askedAgain(askedAgain(FIRST, 1, model("a2"), user("more")), 1, model("a3"));
  for (const [place, expected] of [
    [0, "q a1 then b1"],
    [1, "q a2 more"],
    [2, "q a3"],
  ]) {
    const there = switchTo(third, 1, place);
    assert.equal(words(there), expected);
    assert.equal(there[1].place, place);
    assert.equal(words(switchTo(there, 1, 2)), "q a3");
  }
});

test("a branch within a branch stays in it", () => {
  const inner = askedAgain(FIRST, 3, model("b2"));
  const outer = askedAgain(inner, 1, model("a2"));
  const back = switchTo(outer, 1, 0);
  assert.equal(words(back), "q a1 then b2");
  assert.equal(words(switchTo(back, 3, 0)), "q a1 then b1");
});

test("a place that is none changes nothing", () => {
  assert.equal(switchTo(FIRST, 1, 5), FIRST);
});
