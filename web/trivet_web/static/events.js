// What happened lately, newest first.

import { byId, h } from "./dom.js";
import { time } from "./format.js";

export class Events {
  constructor() {
    this.body = byId("events");
    this.last = -1;
  }

  /** @param {import("./poller.js").State} state */
  show({ events }) {
    const last = events.at(-1)?.id ?? 0;
    if (last === this.last) return;
    this.last = last;
    const rows = [...events].reverse().map((event) =>
      h(
        "li",
        {},
        h("time", { datetime: event.at, class: "quiet" }, time(event.at)),
        h("span", {}, h("b", {}, event.deployment ?? event.kind), ` ${words(event)}`),
      ),
    );
    this.body.replaceChildren(
      rows.length ? h("ol", {}, ...rows) : h("p", { class: "empty" }, "Nothing has happened yet."),
    );
  }
}

function words({ kind, to, reason }) {
  if (kind === "instance" && to) return reason ? `${to}: ${reason}` : to;
  return reason || to || "";
}
