// What `trivet doctor` says of the server's host and home: what is to be done first, the rest on demand.

import { list } from "../../base/api.js";
import { badge } from "../../base/badge.js";
import { byId, h, icon } from "../../base/dom.js";
import { saidNode } from "../../base/said.js";
import { LiveTable } from "../../base/table.js";
import { t, tn } from "../../base/texts.js";

const TONES = /** @type {Record<string, string>} */ ({ ok: "ok", warn: "warn", fail: "bad" });
const ORDER = ["fail", "warn", "ok"];

/** @type {LiveTable<any>} */
const table = new LiveTable(byId("checks"), {
  label: t("settings.checks"),
  keyOf: (one) => `${one.check} ${one.text}`,
  empty: t("settings.no_checks"),
  columns: [
    { key: "check", title: t("settings.column.check"), value: (one) => one.check },
    {
      key: "result",
      title: t("settings.column.result"),
      value: (one) => ORDER.indexOf(one.status),
      cell: (one) => badge(TONES[one.status] ?? "quiet", t(`settings.check.${one.status}`)),
    },
    {
      key: "text",
      title: t("settings.column.finding"),
      class: "wraps",
      value: (one) => `${one.text} ${one.advice}`,
      cell: (one) =>
        h("span", {}, saidNode("span", {}, one.text), one.advice && saidNode("b", { class: "block" }, one.advice)),
    },
  ],
  sort: "result",
});
const again = h(
  "button",
  { type: "button", class: "small", onclick: () => read() },
  icon("again"),
  t("settings.check"),
);
const verdict = h("span", { class: "quiet", role: "status" });

async function read() {
  again.disabled = true;
  verdict.textContent = t("settings.checking");
  try {
    const found = await list("/platform/v1/checks");
    table.show(found);
    const number = found.filter((one) => one.status !== "ok").length;
    verdict.textContent = number ? tn("settings.to_do", number) : t("settings.all_well");
  } catch (error) {
    verdict.textContent = "";
    table.fail(/** @type {any} */ (error), read);
  } finally {
    again.disabled = false;
  }
}

/** For who may operate the site. */
export function showChecks() {
  byId("checks-card").hidden = false;
  byId("checks-action").append(verdict, again);
  read();
}
