// Deployments: what shall run, how much of it does, and what is wrong where it does not.

import { change } from "../../base/api.js";
import { badge, stateWord, toneOf } from "../../base/badge.js";
import { byId, h, icon } from "../../base/dom.js";
import { bindFilter } from "../../base/filters.js";
import { timeNode } from "../../base/format.js";
import { select } from "../../base/form.js";
import { live } from "../../base/live.js";
import { may } from "../../base/page_data.js";
import { LiveTable } from "../../base/table.js";
import { toast } from "../../base/toast.js";
import { t } from "../../base/texts.js";
import { saidNode } from "../../base/said.js";
import { Selection } from "../../base/selection.js";
import { stopDeployment, stopDeployments } from "../../base/stopping.js";

/** @type {Map<string, Record<string, any>[]>} by deployment */
let instancesOf = new Map();
/** @type {Record<string, any>[]} */
let deployments = [];
/** @type {Map<string, number>} replicas by deployment, while the server has not taken them */
const asked = new Map();

const wanted = (/** @type {Record<string, any>} */ one) => asked.get(one.name) ?? one.replicas;
const link = (/** @type {string} */ name) => h("a", { href: `/console/deployments/${encodeURIComponent(name)}` }, name);
const own = (/** @type {Record<string, any>} */ one) => instancesOf.get(one.name) ?? [];

/** @type {Selection<Record<string, any>>} */
const selection = new Selection({
  keyOf: (one) => one.name,
  nameOf: (one) => one.name,
  acts: [
    {
      word: t("deployments.stop"),
      takes: (one) => one.desired === "running",
      run: (all) => stopDeployments(all.map((one) => one.name)),
    },
  ],
});
/** @type {LiveTable<Record<string, any>>} */
const table = new LiveTable(byId("deployments"), {
  selection: may("operate") ? selection : null,
  label: t("shell.page.deployments"),
  keyOf: (one) => one.name,
  empty: t("deployments.empty"),
  emptyAction: may("operate")
    ? () => h("a", { class: "button primary", href: "/console/launch" }, t("shell.page.launch"))
    : undefined,
  columns: [
    { key: "name", title: t("deployments.name"), value: (one) => one.name, cell: (one) => link(one.name) },
    {
      key: "model",
      title: t("deployments.model"),
      value: (one) => `${one.model}:${one.version} ${one.alias ?? ""}`,
      cell: (one) =>
        h("span", {}, `${one.model}:${one.version}`, one.alias && [" ", h("span", { class: "tag" }, one.alias)]),
    },
    { key: "state", title: t("deployments.state"), value: (one) => summaryKey(one), cell: summary },
    {
      key: "replicas",
      title: t("deployments.replicas"),
      isNumber: true,
      value: (one) => `${wanted(one)} ${one.desired}`,
      cell: replicas,
    },
    {
      key: "backend",
      title: t("deployments.backend"),
      value: (one) => [one.backend, one.device].filter(Boolean).join(" "),
    },
    {
      key: "fallback",
      title: t("deployments.fallback"),
      value: (one) => one.fallback,
      cell: (one) => (one.fallback ? link(one.fallback) : "–"),
    },
    {
      key: "created",
      title: t("deployments.created"),
      value: (one) => one.created_at,
      cell: (one) => timeNode(one.created_at),
    },
    ...(may("operate")
      ? [
          {
            key: "actions",
            title: t("deployments.actions"),
            isPlain: true,
            class: "actions",
            value: (/** @type {any} */ one) => one.desired,
            cell: actions,
          },
        ]
      : []),
  ],
});

/** @param {Record<string, any>} one */
const summaryKey = (one) =>
  JSON.stringify([one.desired, one.is_asleep, own(one).map((instance) => [instance.state, instance.reason])]);

/** @param {Record<string, any>} one */
function summary(one) {
  if (one.desired !== "running" && !own(one).length) return badge("quiet", stateWord("stopped"));
  if (one.is_asleep) return badge("quiet", t("deployments.asleep"));
  const counts = new Map();
  for (const { state } of own(one)) counts.set(state, (counts.get(state) ?? 0) + 1);
  const states = [...counts].map(([state, count]) =>
    badge(toneOf(state), count > 1 ? `${count} × ${stateWord(state)}` : stateWord(state)),
  );
  const worst = own(one).find((instance) => toneOf(instance.state) === "bad" || instance.state === "pending");
  return h(
    "div",
    { class: "state" },
    h("span", { class: "row" }, states.length ? states : badge("warn", stateWord("pending"))),
    worst && saidNode("span", { class: "reason" }, worst.reason),
  );
}

/** @param {Record<string, any>} one @param {() => Record<string, any>} now */
function replicas(one, now) {
  if (!may("operate") || one.desired !== "running") return String(one.replicas);
  const step = (/** @type {number} */ by, /** @type {string} */ sign) =>
    h(
      "button",
      {
        type: "button",
        class: "small",
        "aria-label": t(by > 0 ? "deployments.more" : "deployments.fewer", { name: one.name }),
        disabled: wanted(one) + by < 0,
        onclick: () => scale(now(), by),
      },
      sign,
    );
  return h("span", { class: "row nowrap end" }, step(-1, "−"), h("span", {}, wanted(one)), step(1, "+"));
}

/**
 * Clicks count on at once, and are sent one after the other: the last number is what stays.
 *
 * @param {Record<string, any>} one @param {number} by
 */
async function scale(one, by) {
  const { name } = one;
  const isUnderWay = asked.has(name);
  asked.set(name, wanted(one) + by);
  table.draw();
  if (isUnderWay) return;
  try {
    for (let sent = null; sent !== asked.get(name); ) {
      sent = asked.get(name);
      await change("PATCH", `/platform/v1/deployments/${encodeURIComponent(name)}`, { replicas: sent });
      for (const each of deployments) if (each.name === name) each.replicas = sent; // before the stream tells it
    }
  } catch (error) {
    toast(/** @type {Error} */ (error).message, { tone: "bad" });
  }
  asked.delete(name);
  table.draw();
}

/** @param {Record<string, any>} one */
function actions(one) {
  if (one.desired === "running") {
    const update = h(
      "a",
      { class: "button small", href: `/console/deployments/${encodeURIComponent(one.name)}?update=1` },
      t("deployments.update"),
    );
    return h(
      "span",
      { class: "nowrap" },
      update,
      h("button", { type: "button", class: "small", onclick: () => stopDeployment(one.name) }, t("deployments.stop")),
    );
  }
  return h(
    "a",
    { class: "button small", href: `/console/launch?from=${encodeURIComponent(one.name)}` },
    t("deployments.launch_again"),
  );
}

const show = () => table.show(deployments);
const stateFilter = select(
  "desired",
  [
    ["", t("deployments.all")],
    ["running", t("deployments.wanted")],
    ["stopped", stateWord("stopped")],
  ],
  "",
  { "aria-label": t("deployments.state") },
);
byId("toolbar").append(
  table.filterField(),
  stateFilter,
  h("span", { class: "spacer" }),
  h(
    "button",
    { type: "button", class: "ghost", onclick: () => table.download("deployments.csv") },
    icon("download"),
    "CSV",
  ),
);
bindFilter(stateFilter, (desired) => table.pick((one) => !desired || one.desired === desired));
live.objects("deployments", (all) => {
  deployments = [...all.values()];
  show();
});
live.objects("instances", (all) => {
  instancesOf = Map.groupBy(all.values(), (one) => one.deployment);
  if (deployments.length) show();
});
live.onStatus((status) => table.place.stale(status === "live" || !live.asOf ? null : live.asOf));
