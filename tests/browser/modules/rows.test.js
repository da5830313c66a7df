// A row that is read again keeps its buttons, and what they open is of the row as it is now.

import assert from "node:assert/strict";
import { test } from "node:test";
import { all, click, installPage, openPage } from "./fake_page.js";

installPage(["keys", "users", "requests"], ["infer", "read", "operate", "administer"]);

const NOW = "2026-11-29T20:00:00Z";

test("what was taken from a key does not come back when it is renamed", async () => {
  const limits = { priority: 0, max_concurrency: null, requests_per_minute: 60 };
  const times = { expires_at: null, last_used_at: null, revoked_at: null };
  let key = { id: 1, name: "ci", prefix: "sk-1", user: null, scopes: ["infer", "admin"], models: ["b", "a"] };
  key = { ...key, ...limits, ...times };
  const sent = [];
  const readAgain = await openPage("keys", (method, path, body) => {
    if (method === "PATCH") sent.push(body);
    return path.startsWith("/platform/v1/keys") ? { data: [key] } : { data: [] };
  });
  key = { ...key, scopes: ["infer"], requests_per_minute: 6 };
  await readAgain();
  const dialog = await click(document.getElementById("keys"), "Edit");
  const input = (name) => all(dialog, "input").find((one) => one.getAttribute("name") === name);
  assert.equal(input("scope-admin").getAttribute("checked"), null);
  assert.equal(input("requests_per_minute").getAttribute("value"), "6");
  input("name").setAttribute("value", "nightly");
  await all(dialog, "form")[0].listeners.submit({ preventDefault() {} });
  assert.deepEqual(sent, [{ name: "nightly" }]);
});

test("the role that is offered is the user's of now", async () => {
  let user = { name: "wei", role: "admin", is_disabled: false, last_login_at: null, created_at: NOW };
  const readAgain = await openPage("users", (_, path) => ({ data: path.includes("users") ? [user] : [] }));
  user = { ...user, role: "viewer" };
  await readAgain();
  const dialog = await click(document.getElementById("users"), "Role");
  const chosen = all(dialog, "option").filter((one) => one.getAttribute("selected") !== null);
  assert.deepEqual(
    chosen.map((one) => one.getAttribute("value")),
    ["viewer"],
  );
});

test("a request that was first seen running is shown as it ended", async () => {
  let one = { id: "r1", at: NOW, model: "m", who: "", status: "running", reason: "", route: "chat", instance: null };
  one = { ...one, total_s: 1, prefill_s: null, completion_tokens: 0, is_streamed: true };
  const readAgain = await openPage("requests", () => ({ data: [one] }));
  one = { ...one, status: "done", instance: "i7", total_s: 2, prefill_s: 0.5 };
  await readAgain();
  const dialog = await click(document.getElementById("requests"), "m");
  assert.match(dialog.textContent, /i7/);
  assert.match(dialog.textContent, /500 ms/);
});
