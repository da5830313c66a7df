// The settings in effect with where each comes from, and what Trivet is made with.

import { get } from "../../base/api.js";
import { badge } from "../../base/badge.js";
import { byId, h } from "../../base/dom.js";
import { LiveTable } from "../../base/table.js";
import { t } from "../../base/texts.js";

/** @type {Record<string, string>} */
const TONES = { file: "ok", given: "warn", default: "quiet" };

/** @type {LiveTable<any>} */
const settings = new LiveTable(byId("in-effect"), {
  label: t("settings.in_effect"),
  keyOf: (one) => one.name,
  empty: t("settings.nothing_set"),
  columns: [
    {
      key: "name",
      title: t("settings.column.setting"),
      value: (one) => one.name,
      cell: (one) => h("code", {}, one.name),
    },
    {
      key: "value",
      title: t("settings.column.value"),
      value: (one) => one.value,
      cell: (one) => h("bdi", { class: "mono" }, one.value || "–"),
      class: "wraps",
    },
    {
      key: "source",
      title: t("settings.column.source"),
      value: (one) => t(`settings.source.${one.source}`),
      cell: (one) => badge(TONES[one.source] ?? "quiet", t(`settings.source.${one.source}`)),
    },
  ],
});

/** @type {LiveTable<any>} */
const packages = new LiveTable(byId("packages"), {
  label: t("settings.packages"),
  keyOf: (one) => one.name,
  empty: t("settings.no_packages"),
  columns: [
    { key: "package", title: t("settings.column.package"), value: (one) => one.name },
    { key: "version", title: t("settings.column.version"), value: (one) => one.version },
    { key: "licence", title: t("settings.column.licence"), value: (one) => one.licence },
  ],
});

/** Those that somebody set, unless all are asked for. */
function pick() {
  const all = byId("all-settings").checked;
  settings.pick((one) => all || one.source !== "default");
}

async function read() {
  try {
    const found = await get("/platform/v1/settings");
    settings.show(found.settings);
    packages.show(found.packages);
    byId("file").replaceChildren(
      t(found.has_file ? "settings.file" : "settings.no_file"),
      " ",
      h("code", {}, found.file),
      " · ",
      t(found.has_tls ? "settings.tls" : "settings.no_tls"),
      " · ",
      `Python ${found.python}`,
    );
    byId("fault").hidden = !found.fault;
    byId("fault").textContent = found.fault && t("settings.fault", { fault: found.fault });
  } catch (error) {
    settings.fail(/** @type {any} */ (error), read);
  }
}

/** For who may operate the site. */
export function showInEffect() {
  for (const one of ["in-effect-card", "packages-card"]) byId(one).hidden = false;
  byId("all-settings").addEventListener("change", pick);
  pick();
  read();
}
