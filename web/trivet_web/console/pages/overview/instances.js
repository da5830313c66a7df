// The instances of the site, one line each.

import { StateView } from "../../base/badge.js";
import { h } from "../../base/dom.js";
import { count, percent, rate, secondsSince, since } from "../../base/format.js";
import { may } from "../../base/page_data.js";
import { LiveTable } from "../../base/table.js";
import { t } from "../../base/texts.js";

export class Instances {
  /** @param {HTMLElement} parent @param {import("../../base/rates.js").Rates} rates */
  constructor(parent, rates) {
    const launch = () => h("a", { class: "button primary", href: "/console/launch" }, t("overview.launch"));
    this.table = new LiveTable(parent, {
      label: t("overview.instances"),
      keyOf: (one) => one.id,
      empty: t("overview.no_instances"),
      emptyAction: may("operate") ? launch : undefined,
      columns: [
        {
          key: "deployment",
          title: t("overview.column.deployment"),
          value: (one) => one.deployment,
          cell: (one) => h("a", { href: `/console/deployments/${encodeURIComponent(one.deployment)}` }, one.deployment),
        },
        {
          key: "instance",
          title: t("overview.column.instance"),
          value: (one) => one.id,
          cell: (one) => h("a", { class: "mono", href: `/console/instances/${encodeURIComponent(one.id)}` }, one.id),
        },
        {
          key: "state",
          title: t("overview.column.state"),
          value: (one) => `${one.state} ${one.progress ?? ""} ${one.reason}`,
          cell: stateOf,
        },
        { key: "device", title: t("overview.column.device"), value: placeOf },
        {
          key: "running",
          title: t("overview.running"),
          isNumber: true,
          value: (one) => one.load?.num_running,
          cell: (one) => count(one.load?.num_running),
        },
        {
          key: "waiting",
          title: t("overview.waiting"),
          isNumber: true,
          value: (one) => one.load?.num_waiting,
          cell: (one) => count(one.load?.num_waiting),
        },
        {
          key: "rate",
          title: t("overview.tokens_per_s"),
          isNumber: true,
          value: (one) => rates.of(one.id),
          cell: (one) => rate(rates.of(one.id)),
        },
        {
          key: "kv",
          title: t("overview.column.kv"),
          isNumber: true,
          value: (one) => one.load?.kv_usage,
          cell: (one) => percent(one.load?.kv_usage),
        },
        {
          key: "uptime",
          title: t("overview.column.uptime"),
          isNumber: true,
          value: (one) => secondsSince(one.ready_at),
          cell: (one) => since(one.ready_at),
        },
      ],
    });
  }

  /** @param {Record<string, any>[]} instances */
  show(instances) {
    this.table.show(instances);
  }

  /** Times go on by themselves. */
  refresh() {
    this.table.refresh();
  }

  /** @param {number | null} asOf */
  stale(asOf) {
    this.table.place.stale(asOf);
  }
}

/** @param {any} instance */
const placeOf = ({ backend, device_uids: uids }) => (backend ? [...new Set([backend, ...uids])].join(" ") : null);

/** @param {any} instance */
function stateOf(instance) {
  const view = new StateView();
  view.update(instance);
  return view.node;
}
