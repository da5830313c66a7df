// The audit log: who did what, from where, with what result; and whether that is what was written.

import { get, list } from "../../base/api.js";
import { badge } from "../../base/badge.js";
import { codeBlock } from "../../base/copy.js";
import { openDialog } from "../../base/dialog.js";
import { byId, h } from "../../base/dom.js";
import { count, fullTime } from "../../base/format.js";
import { plainTable } from "../../base/plain_table.js";
import { said } from "../../base/said.js";
import { errorBox } from "../../base/states.js";
import { LiveTable } from "../../base/table.js";
import { t, textOr } from "../../base/texts.js";
import { changesOf } from "./changes.js";

const PAGE = 200;

/** @type {Record<string, string>} */
const TONES = { done: "ok", refused: "bad", failed: "bad" };

/** @param {any} entry */
const outcomeWord = (entry) => textOr(`audit.outcome.${entry.outcome}`, entry.outcome);

/** @type {any[]} */
let entries = [];

/** @type {import("../../base/table.js").Column<any>[]} */
const columns = [
  { key: "id", title: t("audit.column.id"), value: (entry) => entry.id, isNumber: true },
  {
    key: "at",
    title: t("audit.column.at"),
    value: (entry) => entry.at,
    cell: (entry) => h("time", { datetime: entry.at, class: "nowrap" }, fullTime(entry.at)),
  },
  {
    key: "actor",
    title: t("audit.column.actor"),
    value: (entry) => said(entry.actor),
    cell: (entry) => h("bdi", {}, said(entry.actor)),
  },
  {
    key: "action",
    title: t("audit.column.action"),
    value: (entry) => entry.action,
    cell: (entry) => h("code", {}, entry.action),
  },
  {
    key: "target",
    title: t("audit.column.target"),
    value: (entry) => entry.target,
    cell: (entry) => h("bdi", { class: "target" }, entry.target),
  },
  {
    key: "outcome",
    title: t("audit.column.outcome"),
    value: (entry) => entry.outcome,
    cell: (entry) => badge(TONES[entry.outcome] ?? "quiet", outcomeWord(entry)),
  },
  { key: "address", title: t("audit.column.address"), value: (entry) => entry.address },
  {
    key: "details",
    title: t("audit.column.details"),
    value: (entry) => entry.id,
    cell: (entry) =>
      h("button", { type: "button", class: "small", onclick: () => showEntry(entry) }, t("audit.details")),
    isPlain: true,
    class: "actions",
  },
];

const table = new LiveTable(byId("entries"), {
  columns,
  keyOf: (entry) => String(entry.id),
  label: t("shell.page.audit"),
  empty: t("audit.none"),
  sort: "-id",
});

/** @param {any} entry */
function showEntry(entry) {
  const rows = changesOf(entry.before, entry.after);
  const changes = rows.length
    ? plainTable(
        t("audit.changes"),
        [[t("audit.field")], [t("audit.before")], [t("audit.after")]],
        rows.map(([name, before, after]) => [h("code", {}, name), before, after]),
      )
    : h("p", { class: "quiet" }, t("audit.no_changes"));
  openDialog({
    title: t("audit.entry", { id: entry.id }),
    isWide: true,
    body: [
      h(
        "dl",
        { class: "facts" },
        [
          [t("audit.column.at"), fullTime(entry.at)],
          [t("audit.column.actor"), entry.actor],
          [t("audit.column.action"), entry.action],
          [t("audit.column.target"), entry.target],
          [t("audit.column.outcome"), outcomeWord(entry)],
          [t("audit.column.address"), entry.address],
          [t("base.request_id"), entry.request_id],
        ].flatMap(([name, value]) => [h("dt", {}, name), h("dd", {}, h("bdi", {}, value || "–"))]),
      ),
      changes,
    ],
  });
}

async function verify() {
  const place = byId("verdict");
  const button = byId("verify");
  button.disabled = true;
  try {
    const found = await get("/platform/v1/audit/verify");
    const sentence = found.is_whole
      ? t("audit.whole", { count: count(found.entries) })
      : t("audit.broken", { fault: found.fault });
    place.replaceChildren(
      h(
        "div",
        { class: "card stack" },
        h(
          "p",
          { class: "row" },
          badge(found.is_whole ? "ok" : "bad", found.is_whole ? t("audit.is_whole") : t("audit.is_broken")),
          sentence,
        ),
        h("p", { class: "help" }, t("audit.anchor")),
        codeBlock(found.anchor),
      ),
    );
  } catch (error) {
    place.replaceChildren(errorBox(/** @type {any} */ (error), verify));
  } finally {
    button.disabled = false;
  }
}

/** @param {boolean} isFirst the newest; else those before what is shown */
async function load(isFirst) {
  const before = isFirst || !entries.length ? "" : `&before=${entries[entries.length - 1].id}`;
  try {
    const found = await list(`/platform/v1/audit?limit=${PAGE}${before}`);
    entries = isFirst ? found : [...entries, ...found];
    byId("older").hidden = found.length < PAGE;
    table.show(entries);
  } catch (error) {
    table.fail(/** @type {any} */ (error), () => load(isFirst));
  }
}

byId("toolbar").append(table.filterField());
byId("download").addEventListener("click", () => table.download("audit.csv"));
byId("verify").addEventListener("click", verify);
byId("older").addEventListener("click", () => load(false));
load(true);
