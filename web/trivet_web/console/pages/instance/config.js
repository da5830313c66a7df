// How an instance was started: its plan beside what it takes, and where its settings are.

import { memoryBar } from "../../base/charts/memory_bar.js";
import { h } from "../../base/dom.js";
import { bytes, count, fullTime, NONE } from "../../base/format.js";
import { plainTable } from "../../base/plain_table.js";
import { t, textOr } from "../../base/texts.js";

let shown = "";

/** @param {HTMLElement} panel @param {Record<string, any>} instance */
export function showConfig(panel, instance) {
  const { as_of: _, load: __, memory, ...fixed } = instance;
  const key = JSON.stringify([fixed, Object.entries(memory ?? {}).map(([name, size]) => [name, bytes(size)])]);
  if (key === shown) return;
  shown = key;
  panel.replaceChildren(h("div", { class: "columns" }, facts(instance), plan(instance)));
}

/** @param {Record<string, any>} one */
function facts(one) {
  /** @type {[string, string][]} */
  const rows = [
    ["model", one.model],
    ["backend", one.backend ?? NONE],
    ["devices", one.device_uids.join(", ") || NONE],
    ["starts", count(one.attempt)],
    ["generation", count(one.generation)],
    ["processes", one.processes.map((/** @type {any} */ process) => process.pid).join(", ") || NONE],
    ["created_at", fullTime(one.created_at)],
    ["ready_at", one.ready_at ? fullTime(one.ready_at) : NONE],
  ];
  return h(
    "section",
    { class: "card" },
    h("div", { class: "card-head" }, h("h2", {}, t("instance.facts"))),
    h(
      "dl",
      { class: "facts" },
      rows.flatMap(([name, value]) => [h("dt", {}, t(`instance.fact.${name}`)), h("dd", {}, value)]),
    ),
  );
}

/** @param {Record<string, any>} one */
function plan(one) {
  const parts = one.plan?.parts ?? [];
  if (!parts.length)
    return h(
      "section",
      { class: "card" },
      h("div", { class: "card-head" }, h("h2", {}, t("instance.plan"))),
      h("p", { class: "quiet" }, t("instance.no_plan")),
    );
  const total = parts.reduce((/** @type {number} */ sum, /** @type {any} */ part) => sum + part.size_bytes, 0);
  /** @type {[string, string?][]} */
  const heads = [
    [t("instance.plan_part")],
    [t("instance.plan_planned"), "number"],
    [t("instance.plan_measured"), "number"],
  ];
  const rows = parts.map((/** @type {any} */ part) => [
    textOr(`base.memory.${part.name}`, part.name),
    bytes(part.size_bytes),
    bytes(one.memory?.[part.name]),
  ]);
  return h(
    "section",
    { class: "card" },
    h(
      "div",
      { class: "card-head" },
      h("h2", {}, t("instance.plan")),
      h("span", { class: "quiet" }, t("instance.context", { count: count(one.plan.max_model_len) })),
    ),
    memoryBar(parts, total),
    plainTable(t("instance.plan"), heads, rows),
  );
}
