import assert from "node:assert/strict";
import { test } from "node:test";
import { installDocument } from "./dom.js";

installDocument({}, "zh-CN", {
  "generated a token and serves": "正在服务",
  "attempt {number} in {seconds} s, because: {reason}": "{seconds} 秒后第 {number} 次，原因：{reason}",
  "killed by {signal}": "被 {signal} 终止",
  "a (b) [c] {d}?": "括号 {d}",
});
const { languageOf, said, saidNode } = await import("../../../web/trivet_web/console/base/said.js");

test("a sentence that is known is in the reader's language, with its values", () => {
  assert.equal(said("generated a token and serves"), "正在服务");
  assert.equal(said("attempt 2 in 4 s, because: no idea; see it"), "4 秒后第 2 次，原因：no idea; see it");
  assert.equal(said("a (b) [c] x?"), "括号 x");
});

test("a value that is a sentence is in the reader's language, too", () => {
  assert.equal(said("attempt 2 in 4 s, because: killed by SIGKILL"), "4 秒后第 2 次，原因：被 SIGKILL 终止");
});

test("what is not known stays and is marked as English", () => {
  assert.equal(said("was killed by SIGKILL"), "was killed by SIGKILL");
  assert.equal(saidNode("p", {}, "was killed by SIGKILL").getAttribute("lang"), "en");
  assert.equal(saidNode("p", {}, "killed by SIGTERM").getAttribute("lang"), null);
  assert.equal(languageOf(""), null);
});
