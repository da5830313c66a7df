import assert from "node:assert/strict";
import { test } from "node:test";
import { curlOf, literal, pythonOf } from "../../../web/trivet_web/console/pages/api/examples.js";

const HERE = "http://127.0.0.1:8000";

test("a value is written as Python has it", () => {
  assert.equal(
    literal({ stream: true, stop: null, "a b": [1, 'x\n"y"'] }),
    '{"stream": True, "stop": None, "a b": [1, "x\\n\\"y\\""]}',
  );
});

test("a quote in a body does not end the shell's argument", () => {
  assert.match(curlOf(HERE, "/v1/completions", "post", { prompt: "it's" }), /-d '\{"prompt":"it'\\''s"\}'$/);
});

test("a route without a body has none in its examples", () => {
  assert.doesNotMatch(curlOf(HERE, "/v1/models", "get", undefined), /-d |-X/);
  assert.doesNotMatch(pythonOf(HERE, "/v1/models", "get", undefined), /json=/);
});
