// Settings: what this site is and has, and where it is changed. Settings of the site are a file of its home.

import { change, get } from "../../base/api.js";
import { badge } from "../../base/badge.js";
import { codeBlock } from "../../base/copy.js";
import { confirm } from "../../base/dialog.js";
import { byId, h } from "../../base/dom.js";
import { bytes, count, timeNode } from "../../base/format.js";
import { live } from "../../base/live.js";
import { may } from "../../base/page_data.js";
import { saidNode } from "../../base/said.js";
import { DataPlace } from "../../base/states.js";
import { LiveTable } from "../../base/table.js";
import { toast } from "../../base/toast.js";
import { t, textOr } from "../../base/texts.js";
import { showChecks } from "./checks.js";
import { showInEffect } from "./in_effect.js";

const facts = h("dl", { class: "facts" });
const site = new DataPlace(byId("site"), facts);
const stored = h("dl", { class: "facts" });
const store = new DataPlace(byId("store"), stored);

/** @param {[string, Node | string][]} rows */
const entries = (rows) =>
  rows.flatMap(([name, value]) => [h("dt", {}, t(`settings.fact.${name}`)), h("dd", {}, value)]);

/** @type {LiveTable<Record<string, any>>} */
const devices = new LiveTable(byId("devices"), {
  label: t("settings.devices"),
  keyOf: (one) => `${one.kind}:${one.uid}`,
  empty: t("settings.no_devices"),
  columns: [
    { key: "device", title: t("settings.column.device"), value: (one) => `${one.kind}:${one.index}` },
    { key: "name", title: t("settings.column.name"), value: (one) => one.name },
    { key: "arch", title: t("settings.column.arch"), value: (one) => one.arch },
    {
      key: "usable",
      title: t("settings.column.usable"),
      value: (one) => one.unusable_because ?? "",
      cell: (one) =>
        h(
          "div",
          { class: "state" },
          badge(one.unusable_because ? "bad" : "ok", t(one.unusable_because ? "settings.no" : "settings.yes")),
          saidNode("span", { class: "reason" }, one.unusable_because ?? ""),
        ),
    },
    {
      key: "memory",
      title: t("settings.column.memory"),
      isNumber: true,
      value: (one) => one.total_bytes,
      cell: (one) => bytes(one.total_bytes),
    },
    { key: "types", title: t("settings.column.types"), value: (one) => one.dtypes.join(", ") },
    {
      key: "versions",
      title: t("settings.column.versions"),
      value: (one) =>
        Object.entries(one.versions)
          .map(([name, version]) => `${name} ${version}`)
          .join(", "),
    },
    { key: "seen", title: t("settings.column.seen"), value: (one) => one.as_of, cell: (one) => timeNode(one.as_of) },
  ],
});

async function readStore() {
  try {
    const { num_files: files, size_bytes: size } = await get("/platform/v1/store");
    stored.replaceChildren(
      ...entries([
        ["files", count(files)],
        ["size", bytes(size)],
      ]),
    );
    store.show();
  } catch (error) {
    store.fail(/** @type {any} */ (error), readStore);
  }
}

async function collect() {
  const isDone = await confirm({
    title: t("settings.collect_title"),
    text: t("settings.collect_text"),
    yes: t("settings.collect"),
    onYes: async () => {
      const gone = await change("POST", "/platform/v1/store/collect");
      toast(t("settings.collected", { count: count(gone.num_files), size: bytes(gone.size_bytes) }));
    },
  });
  if (isDone) readStore();
}

live.objects("site", (all) => {
  const one = all.get("site");
  if (!one) return;
  const supervisor = badge(one.supervisor.up ? "ok" : "bad", t(one.supervisor.up ? "settings.up" : "settings.down"));
  facts.replaceChildren(
    ...entries([
      ["version", one.version],
      ["auth", textOr(`settings.auth.${one.auth}`, one.auth)],
      ["supervisor", h("span", { class: "row" }, supervisor, one.supervisor.pid ? `pid ${one.supervisor.pid}` : "")],
      ["heard", timeNode(one.supervisor.as_of)],
    ]),
  );
  site.show();
});
live.objects("devices", (all) => devices.show([...all.values()].filter((one) => one.kind !== "null")));
if (may("operate"))
  byId("store-action").append(h("button", { type: "button", class: "small", onclick: collect }, t("settings.collect")));
byId("commands").append(
  codeBlock(
    "trivet config export > site.toml\ntrivet config diff site.toml\ntrivet config apply site.toml\ntrivet db upgrade --check",
  ),
);
if (may("operate")) {
  showInEffect();
  showChecks();
}
readStore();
