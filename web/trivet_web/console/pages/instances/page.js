// Instances: every engine process, its state with the reason, and what it does.

import { StateView, stateWord } from "../../base/badge.js";
import { byId, h, icon } from "../../base/dom.js";
import { bindFilter } from "../../base/filters.js";
import { count, fullTime, percent, rate, secondsSince, since } from "../../base/format.js";
import { select } from "../../base/form.js";
import { list } from "../../base/api.js";
import { live } from "../../base/live.js";
import { Rates } from "../../base/rates.js";
import { LiveTable } from "../../base/table.js";
import { t } from "../../base/texts.js";

const STATES = ["pending", "starting", "loading", "warming", "ready", "draining", "failed"];
const REDRAW_MS = 5000; // times go on by themselves

const rates = new Rates();
/** @type {LiveTable<Record<string, any>>} */
const table = new LiveTable(byId("instances"), {
  label: t("shell.page.instances"),
  keyOf: (one) => one.id,
  empty: t("instances.empty"),
  columns: [
    {
      key: "instance",
      title: t("instances.instance"),
      value: (one) => one.id,
      cell: (one) => h("a", { class: "mono", href: `/console/instances/${encodeURIComponent(one.id)}` }, one.id),
    },
    {
      key: "deployment",
      title: t("instances.deployment"),
      value: (one) => one.deployment,
      cell: (one) => h("a", { href: `/console/deployments/${encodeURIComponent(one.deployment)}` }, one.deployment),
    },
    {
      key: "state",
      title: t("instances.state"),
      value: (one) => `${one.state} ${one.progress ?? ""} ${one.reason}`,
      cell: stateOf,
    },
    {
      key: "device",
      title: t("instances.device"),
      value: (one) => (one.backend ? [...new Set([one.backend, ...one.device_uids])].join(" ") : null),
    },
    {
      key: "running",
      title: t("instances.running"),
      isNumber: true,
      value: (one) => one.load?.num_running,
      cell: (one) => count(one.load?.num_running),
    },
    {
      key: "waiting",
      title: t("instances.waiting"),
      isNumber: true,
      value: (one) => one.load?.num_waiting,
      cell: (one) => count(one.load?.num_waiting),
    },
    {
      key: "rate",
      title: t("instances.rate"),
      isNumber: true,
      value: (one) => rates.of(one.id),
      cell: (one) => rate(rates.of(one.id)),
    },
    {
      key: "kv",
      title: t("instances.kv"),
      isNumber: true,
      value: (one) => one.load?.kv_usage,
      cell: (one) => percent(one.load?.kv_usage),
    },
    { key: "starts", title: t("instances.starts"), isNumber: true, value: (one) => one.attempt },
    {
      key: "ready",
      title: t("instances.ready_for"),
      isNumber: true,
      value: (one) => secondsSince(one.ready_at),
      cell: (one) => h("span", { title: one.ready_at ? fullTime(one.ready_at) : null }, since(one.ready_at)),
    },
  ],
});

/** @param {Record<string, any>} instance */
function stateOf(instance) {
  const view = new StateView();
  view.update(/** @type {any} */ (instance));
  return view.node;
}

/** @type {Record<string, any>[]} */
let living = [];
/** @type {Record<string, any>[]} those that ended, where they are asked for */
let ended = [];

const show = () => table.show([...living, ...ended.filter((one) => !living.some((other) => other.id === one.id))]);

const stateFilter = select(
  "state",
  [
    ["", t("instances.all_states")],
    ...STATES.map((state) => /** @type {[string, string]} */ ([state, stateWord(state)])),
  ],
  "",
  { "aria-label": t("instances.state") },
);
const endedBox = h("input", { type: "checkbox", name: "ended" });
const csv = h(
  "button",
  { type: "button", class: "ghost", onclick: () => table.download("instances.csv") },
  icon("download"),
  "CSV",
);
byId("toolbar").append(
  table.filterField(),
  stateFilter,
  h("label", { class: "check" }, endedBox, t("instances.ended")),
  h("span", { class: "spacer" }),
  csv,
);
bindFilter(stateFilter, (state) => table.pick((one) => !state || one.state === state));
endedBox.addEventListener("change", async () => {
  ended = endedBox.checked ? await list("/platform/v1/instances?all=1").catch(() => []) : [];
  show();
});

live.objects("instances", (all) => {
  living = [...all.values()];
  rates.add(living, Date.now());
  show();
});
live.onStatus((status) => table.place.stale(status === "live" || !live.asOf ? null : live.asOf));
setInterval(() => document.hidden || table.refresh(), REDRAW_MS);
