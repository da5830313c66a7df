// One deployment: what shall run, the instances that do, what happened, and how to change it.

import { ApiError } from "../../base/api.js";
import { StateView } from "../../base/badge.js";
import { byId, h } from "../../base/dom.js";
import { count, fullTime, percent, rate, since } from "../../base/format.js";
import { live } from "../../base/live.js";
import { may, pageData } from "../../base/page_data.js";
import { Rates } from "../../base/rates.js";
import { DataPlace, errorBox } from "../../base/states.js";
import { stopDeployment } from "../../base/stopping.js";
import { LiveTable } from "../../base/table.js";
import { t } from "../../base/texts.js";
import { Timeline } from "../../base/timeline.js";
import { openUpdate } from "./update.js";

const name = pageData.thing ?? "";
const rates = new Rates();
const facts = h("dl", { class: "facts" });
const place = new DataPlace(byId("facts"), facts);
const timeline = new Timeline(
  byId("events"),
  (event) => event.deployment === name,
  `deployment=${encodeURIComponent(name)}`,
);
/** @type {LiveTable<Record<string, any>>} */
const table = new LiveTable(byId("instances"), {
  label: t("shell.page.instances"),
  keyOf: (one) => one.id,
  empty: t("deployment.no_instances"),
  columns: [
    {
      key: "instance",
      title: t("deployment.instance"),
      value: (one) => one.id,
      cell: (one) => h("a", { class: "mono", href: `/console/instances/${encodeURIComponent(one.id)}` }, one.id),
    },
    {
      key: "state",
      title: t("deployment.state"),
      value: (one) => `${one.state} ${one.progress ?? ""} ${one.reason}`,
      cell: stateOf,
    },
    {
      key: "device",
      title: t("deployment.device"),
      value: (one) => (one.backend ? [...new Set([one.backend, ...one.device_uids])].join(" ") : null),
    },
    {
      key: "running",
      title: t("deployment.running"),
      isNumber: true,
      value: (one) => one.load?.num_running,
      cell: (one) => count(one.load?.num_running),
    },
    {
      key: "waiting",
      title: t("deployment.waiting"),
      isNumber: true,
      value: (one) => one.load?.num_waiting,
      cell: (one) => count(one.load?.num_waiting),
    },
    {
      key: "rate",
      title: t("deployment.rate"),
      isNumber: true,
      value: (one) => rates.of(one.id),
      cell: (one) => rate(rates.of(one.id)),
    },
    {
      key: "kv",
      title: t("deployment.kv"),
      isNumber: true,
      value: (one) => one.load?.kv_usage,
      cell: (one) => percent(one.load?.kv_usage),
    },
    { key: "ready", title: t("deployment.ready_for"), isNumber: true, value: (one) => since(one.ready_at) },
  ],
});

/** @param {Record<string, any>} instance */
function stateOf(instance) {
  const view = new StateView();
  view.update(/** @type {any} */ (instance));
  return view.node;
}

/** @param {Record<string, any>} one */
function showFacts(one) {
  place.show();
  const settings = Object.entries(one.settings);
  /** @type {[string, Node | string][]} */
  const rows = [
    [
      "model",
      h(
        "span",
        {},
        h("a", { href: `/console/models/${encodeURIComponent(one.model)}` }, one.model),
        `:${one.version}`,
        one.alias && [" ", h("span", { class: "tag" }, one.alias)],
      ),
    ],
    [
      "wanted",
      one.desired === "running" ? t("deployment.replicas", { count: count(one.replicas) }) : t("deployment.stopped"),
    ],
    ["where", [one.backend, one.device].filter(Boolean).join(" · ")],
    [
      "settings",
      settings.length
        ? h("code", {}, settings.map(([key, value]) => `${key}=${value}`).join("  "))
        : t("deployment.defaults"),
    ],
    ["fallback", one.fallback ?? "–"],
    ["priority", String(one.priority)],
    ["generation", String(one.generation)],
    ["created", fullTime(one.created_at)],
  ];
  facts.replaceChildren(
    ...rows.flatMap(([key, value]) => [h("dt", {}, t(`deployment.fact.${key}`)), h("dd", {}, value)]),
  );
  showActions(one);
}

/** @param {Record<string, any>} one */
function showActions(one) {
  const chat = h(
    "a",
    { class: "button", href: `/console/playground?model=${encodeURIComponent(name)}` },
    t("deployment.chat"),
  );
  const update = h("button", { type: "button", onclick: () => openUpdate(one) }, t("deployment.update"));
  const stop = h("button", { type: "button", onclick: () => stopDeployment(name) }, t("base.stop.submit"));
  const again = h(
    "a",
    { class: "button", href: `/console/launch?model=${encodeURIComponent(`${one.model}:${one.version}`)}` },
    t("deployment.launch_again"),
  );
  const shown =
    one.desired === "running"
      ? [may("infer") && chat, may("operate") && update, may("operate") && stop]
      : [may("operate") && again];
  byId("actions").replaceChildren(...shown.filter((button) => button !== false));
}

live.objects("deployments", (all) => {
  const found = all.get(name);
  if (found) showFacts(found);
  else
    byId("facts").replaceChildren(
      errorBox(new ApiError(t("deployment.not_there", { name }), 404, { code: "not_found" })),
    );
});
live.objects("instances", (all) => {
  const own = [...all.values()].filter((one) => one.deployment === name);
  rates.add(own, Date.now());
  table.show(own);
});
live.onStatus((status) => table.place.stale(status === "live" || !live.asOf ? null : live.asOf));
timeline.begin();
