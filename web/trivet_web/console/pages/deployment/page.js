// One deployment: what shall run, the instances that do, what happened, and how to change it.

import { ApiError } from "../../base/api.js";
import { badge, stateWord, StateView, toneOf } from "../../base/badge.js";
import { codeBlock } from "../../base/copy.js";
import { byId, h } from "../../base/dom.js";
import { Failure, worstOf } from "../../base/failure.js";
import { filterOf, setFilter } from "../../base/filters.js";
import { count, fullTime, percent, rate, secondsSince, since } from "../../base/format.js";
import { commandOf } from "../../base/launch_command.js";
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
const failure = new Failure(byId("failure"), { namesInstance: true });
/** @type {Record<string, any> | null} */
let deployment = null;
/** @type {Record<string, any>[] | null} */
let instances = null;
let shownCommand = "";
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
    {
      key: "ready",
      title: t("deployment.ready_for"),
      isNumber: true,
      value: (one) => secondsSince(one.ready_at),
      cell: (one) => since(one.ready_at),
    },
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
    ["wanted", wantedOf(one)],
    ["observed", h("span", { class: "row", id: "observed" })],
    ["where", [one.backend, one.device].filter(Boolean).join(" · ")],
    [
      "settings",
      settings.length
        ? h("code", {}, settings.map(([key, value]) => `${key}=${value}`).join("  "))
        : t("deployment.defaults"),
    ],
    [
      "fallback",
      one.fallback ? h("a", { href: `/console/deployments/${encodeURIComponent(one.fallback)}` }, one.fallback) : "–",
    ],
    ["priority", String(one.priority)],
    ["generation", String(one.generation)],
    ["created", fullTime(one.created_at)],
  ];
  facts.replaceChildren(
    ...rows.flatMap(([key, value]) => [h("dt", {}, t(`deployment.fact.${key}`)), h("dd", {}, value)]),
  );
  showObserved();
  showActions(one);
  showCommand(one);
}

/** @param {Record<string, any>} one */
function wantedOf(one) {
  if (one.desired !== "running") return t("deployment.stopped");
  return one.is_asleep ? t("deployment.asleep") : t("deployment.replicas", { count: count(one.replicas) });
}

/** How many of its instances are in which state. */
function showObserved() {
  const node = document.getElementById("observed");
  if (!node || !instances) return;
  const states = [...Map.groupBy(instances, (one) => one.state)].map(([state, ones]) =>
    badge(toneOf(state), ones.length > 1 ? `${ones.length} × ${stateWord(state)}` : stateWord(state)),
  );
  node.replaceChildren(...(states.length ? states : ["–"]));
}

/** Links from elsewhere lead to the update; it offers devices, so it waits for them. */
function updateIfAsked() {
  if (!filterOf("update") || deployment?.desired !== "running" || !live.known.has("devices")) return;
  setFilter("update", "");
  if (may("operate")) openUpdate(deployment);
}

/** @param {Record<string, any>} one */
function showCommand(one) {
  const command = commandOf({ ...one, model: `${one.model}:${one.alias ?? one.version}` });
  if (command === shownCommand) return;
  shownCommand = command;
  byId("command").replaceChildren(codeBlock(command));
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
    { class: "button", href: `/console/launch?from=${encodeURIComponent(name)}` },
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
  deployment = found ?? null;
  if (found) {
    showFacts(found);
    failure.show(worstOf(instances ?? []), found);
    updateIfAsked();
  } else
    byId("facts").replaceChildren(
      errorBox(new ApiError(t("deployment.not_there", { name }), 404, { code: "not_found" })),
    );
});
live.objects("instances", (all) => {
  instances = [...all.values()].filter((one) => one.deployment === name);
  rates.add(instances, Date.now());
  table.show(instances);
  showObserved();
  failure.show(worstOf(instances), deployment ?? undefined);
});
live.objects("devices", updateIfAsked);
live.onStatus((status) => table.place.stale(status === "live" || !live.asOf ? null : live.asOf));
timeline.begin();
