// Models: what is registered, its versions and names, what runs of it, and what is on its way here.

import { list } from "../../base/api.js";
import { byId, h, icon } from "../../base/dom.js";
import { filterOf, setFilter } from "../../base/filters.js";
import { bytes, count, timeNode } from "../../base/format.js";
import { live } from "../../base/live.js";
import { may } from "../../base/page_data.js";
import { keepFresh } from "../../base/refreshing.js";
import { LiveTable } from "../../base/table.js";
import { t } from "../../base/texts.js";
import { openAdd } from "./add.js";
import { Pulls } from "./pulls.js";

/** @type {Map<string, number>} deployments that shall run, by model */
let numDeployed = new Map();
const newest = (/** @type {any} */ model) => model.versions[model.versions.length - 1];
const place = (/** @type {string} */ name) => `/console/models/${encodeURIComponent(name)}`;

/** @type {LiveTable<Record<string, any>>} */
const table = new LiveTable(byId("models"), {
  label: t("shell.page.models"),
  keyOf: (one) => one.name,
  empty: t("models.empty"),
  emptyAction: may("operate")
    ? () => h("button", { type: "button", class: "primary", onclick: add }, t("models.add"))
    : undefined,
  sort: "name",
  columns: [
    {
      key: "name",
      title: t("models.name"),
      value: (one) => one.name,
      cell: (one) => h("a", { href: place(one.name) }, one.name),
    },
    {
      key: "versions",
      title: t("models.versions"),
      value: (one) => JSON.stringify([one.versions.length, one.aliases]),
      cell: versions,
    },
    { key: "architecture", title: t("models.architecture"), value: (one) => newest(one)?.architecture },
    {
      key: "format",
      title: t("models.format"),
      value: (one) => [newest(one)?.format, newest(one)?.quantization].filter(Boolean).join(" "),
    },
    {
      key: "size",
      title: t("models.size"),
      isNumber: true,
      value: (one) => newest(one)?.size_bytes,
      cell: (one) => bytes(newest(one)?.size_bytes),
    },
    {
      key: "context",
      title: t("models.context"),
      isNumber: true,
      value: (one) => newest(one)?.context_length,
      cell: (one) => count(newest(one)?.context_length),
    },
    {
      key: "abilities",
      title: t("models.abilities"),
      value: (one) => newest(one)?.abilities.join(" "),
      cell: (one) =>
        h(
          "span",
          { class: "row" },
          newest(one)?.abilities.map((/** @type {string} */ name) => h("span", { class: "tag" }, name)),
        ),
    },
    { key: "deployed", title: t("models.deployed"), isNumber: true, value: (one) => numDeployed.get(one.name) ?? 0 },
    {
      key: "added",
      title: t("models.added"),
      value: (one) => newest(one)?.created_at,
      cell: (one) => timeNode(newest(one)?.created_at),
    },
    ...(may("operate")
      ? [
          {
            key: "actions",
            title: t("models.actions"),
            isPlain: true,
            class: "actions",
            value: (/** @type {any} */ one) => one.name,
            cell: (/** @type {any} */ one) =>
              h(
                "a",
                { class: "button small", href: `/console/launch?model=${encodeURIComponent(one.name)}` },
                t("models.launch"),
              ),
          },
        ]
      : []),
  ],
});

/** @param {Record<string, any>} one */
function versions(one) {
  const names = Object.entries(one.aliases).map(([alias, version]) =>
    h("span", { class: "tag" }, `${alias} → ${version}`),
  );
  return h("span", { class: "row" }, String(one.versions.length), names);
}

async function read() {
  try {
    table.show(await list("/platform/v1/models"));
  } catch (error) {
    table.fail(/** @type {any} */ (error), read);
  }
}

async function add() {
  if (await openAdd()) {
    await read();
    pulls.read();
  }
}

const pulls = new Pulls(byId("pulls-card"), byId("pulls"), read);
byId("toolbar").append(
  table.filterField(),
  h("span", { class: "spacer" }),
  h("button", { type: "button", class: "ghost", onclick: () => table.download("models.csv") }, icon("download"), "CSV"),
);
document.getElementById("add")?.addEventListener("click", add);
if (filterOf("add") && may("operate")) {
  setFilter("add", "");
  add();
}
live.objects("deployments", (all) => {
  numDeployed = new Map();
  for (const one of all.values())
    if (one.desired === "running") numDeployed.set(one.model, (numDeployed.get(one.model) ?? 0) + 1);
  table.refresh();
});
read();
pulls.read();
keepFresh(() => {
  read();
  pulls.read();
});
