// What a key used in the last 30 days.

import { get } from "../../base/api.js";
import { openDialog } from "../../base/dialog.js";
import { h } from "../../base/dom.js";
import { count } from "../../base/format.js";
import { LiveTable } from "../../base/table.js";
import { t } from "../../base/texts.js";

/** @typedef {{day: string, model: string, requests: number, prompt_tokens: number, cached_tokens: number, completion_tokens: number, cost: number | null}} Row */

/** @param {any} key */
export function showUsage(key) {
  const place = h("div");
  /** @type {import("../../base/table.js").Column<Row>[]} */
  const columns = [
    { key: "day", title: t("keys.usage.day"), value: (row) => row.day },
    { key: "model", title: t("keys.usage.model"), value: (row) => row.model, cell: (row) => h("bdi", {}, row.model) },
    .../** @type {const} */ (["requests", "prompt_tokens", "cached_tokens", "completion_tokens"]).map((name) => ({
      key: name,
      title: t(`keys.usage.${name}`),
      value: (/** @type {Row} */ row) => row[name],
      cell: (/** @type {Row} */ row) => count(row[name]),
      isNumber: true,
    })),
  ];
  const table = new LiveTable(place, {
    columns,
    keyOf: (row) => `${row.day} ${row.model}`,
    label: t("keys.usage_title", { name: key.name }),
    empty: t("keys.usage_none"),
    sort: "-day",
  });
  const cost = h("p", { class: "quiet" });
  const load = async () => {
    try {
      const found = await get(`/platform/v1/usage?key=${key.id}&all=1`);
      table.show(found.data);
      if (found.cost === null) return;
      cost.textContent = t("keys.usage_cost", { cost: found.cost.toFixed(2), currency: found.currency });
      if (found.unpriced_models.length)
        cost.textContent += ` ${t("keys.usage_unpriced", { models: found.unpriced_models.join(", ") })}`;
    } catch (error) {
      table.fail(/** @type {any} */ (error), load);
    }
  };
  load();
  return openDialog({ title: t("keys.usage_title", { name: key.name }), body: [place, cost], isWide: true });
}
