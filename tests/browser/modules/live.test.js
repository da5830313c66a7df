import assert from "node:assert/strict";
import { mock, test } from "node:test";
import { installDocument } from "./dom.js";

installDocument();
const { Live } = await import("../../../web/trivet_web/console/base/live.js");

class FakeSource {
  constructor(url) {
    this.url = new URL(url, "http://here");
    this.listeners = {};
    this.isClosed = false;
  }
  addEventListener(name, listener) {
    this.listeners[name] = listener;
  }
  close() {
    this.isClosed = true;
  }
  say(topic, data, lastEventId = "m-1") {
    this.listeners[topic]({ data: JSON.stringify(data), lastEventId });
  }
}

function made() {
  mock.timers.reset();
  mock.timers.enable({ apis: ["setTimeout"] });
  const sources = [];
  const doc = { hidden: false, addEventListener: (_, listener) => (doc.changed = listener) };
  const ask = mock.fn();
  const open = (url) => sources.at(sources.push(new FakeSource(url)) - 1);
  const live = new Live({ open, doc, random: () => 0.5, ask });
  return { live, sources, doc, ask };
}

test("one stream carries all topics of a page", () => {
  const { live, sources } = made();
  live.objects("instances", () => undefined);
  live.objects("site", () => undefined);
  live.figures(() => undefined);
  mock.timers.tick(1);
  assert.equal(sources.length, 1);
  assert.equal(sources[0].url.searchParams.get("topics"), "instances,metrics,site");
});

test("objects are kept up to date", () => {
  const { live, sources } = made();
  let shown = [];
  live.objects("instances", (all) => (shown = [...all.values()].map((one) => `${one.id}${one.state}`)));
  mock.timers.tick(1);
  sources[0].say("instances", {
    all: [
      { id: "a", state: 1 },
      { id: "b", state: 1 },
    ],
  });
  sources[0].say("instances", { set: [{ id: "b", state: 2 }], gone: ["a"] }, "m-2");
  assert.deepEqual(shown, ["b2"]);
});

test("a broken stream is taken up where it broke, later each time", () => {
  const { live, sources } = made();
  const waits = [];
  live.objects("site", () => undefined);
  live.onStatus((status, wait) => status === "offline" && waits.push(wait));
  mock.timers.tick(1);
  sources[0].say("site", { all: [{}] }, "m-7");
  sources[0].listeners.error();
  mock.timers.tick(1001);
  assert.equal(sources[1].url.searchParams.get("after"), "m-7");
  sources[1].listeners.error();
  sources[0].listeners.error();
  assert.deepEqual(waits, [1000, 2000]);
});

test("a refused stream asks why: its login may have ended", () => {
  const { live, sources, ask } = made();
  live.objects("site", () => undefined);
  mock.timers.tick(1);
  assert.equal(ask.mock.callCount(), 0);
  sources[0].listeners.error();
  assert.equal(ask.mock.callCount(), 1);
});

test("a hidden tab has no stream", () => {
  const { live, sources, doc } = made();
  live.objects("site", () => undefined);
  mock.timers.tick(1);
  doc.hidden = true;
  doc.changed();
  assert.ok(sources[0].isClosed);
  doc.hidden = false;
  doc.changed();
  mock.timers.tick(1);
  assert.equal(sources.length, 2);
});

test("a topic that comes later is asked for anew, with all of it", () => {
  const { live, sources } = made();
  live.objects("site", () => undefined);
  mock.timers.tick(1);
  sources[0].say("site", { all: [{}] }, "m-7");
  live.objects("events", () => undefined);
  mock.timers.tick(1);
  assert.equal(sources[1].url.searchParams.get("after"), null);
});
