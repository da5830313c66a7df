import assert from "node:assert/strict";
import { test } from "node:test";
import { adaptersOf, linesOf } from "../../../web/trivet_web/console/pages/launch/adapters.js";

test("lines become the setting, and the setting lines", () => {
  assert.equal(adaptersOf(" sql=/a/sql \n\ntone = /b\n"), "sql=/a/sql,tone=/b");
  assert.equal(linesOf("sql=/a/sql,tone=/b"), "sql=/a/sql\ntone=/b");
});

test("a folder with a mark of the short form goes there and back", () => {
  const lines = "sql=/a, b=c\ntone=/b";
  assert.deepEqual(JSON.parse(adaptersOf(lines)), { sql: "/a, b=c", tone: "/b" });
  assert.equal(linesOf(adaptersOf(lines)), lines);
});

test("what cannot be read is shown as it is", () => {
  assert.equal(linesOf("{sql"), "{sql");
  assert.equal(adaptersOf("sql"), "sql=");
});
