// Changes what a deployment runs: new instances replace the old ones as they are ready.

import { change } from "../../base/api.js";
import { openDialog } from "../../base/dialog.js";
import { h } from "../../base/dom.js";
import { field, input, textarea } from "../../base/form.js";
import { toast } from "../../base/toast.js";
import { t } from "../../base/texts.js";

/** @param {Record<string, any>} one */
export async function openUpdate(one) {
  const settings = textarea("settings", { rows: 5, class: "mono" });
  settings.value = Object.entries(one.settings)
    .map(([key, value]) => `${key}=${value}`)
    .join("\n");
  const isDone = await openDialog({
    title: t("deployment.update_title", { name: one.name }),
    body: [
      h("p", { class: "quiet" }, t("deployment.update_note")),
      field(
        t("deployment.fact.model"),
        input("model", {
          value: one.alias ? `${one.model}:${one.alias}` : `${one.model}:${one.version}`,
          required: true,
        }),
      ),
      field(
        t("deployment.replica_count"),
        input("replicas", { type: "number", min: 0, max: 64, value: one.replicas, required: true }),
      ),
      field(t("deployment.fact.settings"), settings, t("deployment.settings_help")),
    ],
    submit: t("deployment.update"),
    onSubmit: (form) =>
      change("PATCH", `/platform/v1/deployments/${encodeURIComponent(one.name)}`, changesOf(one, form)),
  });
  if (isDone) toast(t("deployment.updating", { name: one.name }));
}

/** Only what differs; a setting that is gone is taken back. @param {Record<string, any>} one @param {FormData} form */
export function changesOf(one, form) {
  /** @type {Record<string, any>} */
  const changes = {};
  const model = String(form.get("model")).trim();
  if (model !== (one.alias ? `${one.model}:${one.alias}` : `${one.model}:${one.version}`)) changes.model = model;
  if (Number(form.get("replicas")) !== one.replicas) changes.replicas = Number(form.get("replicas"));
  const wanted = Object.fromEntries(
    String(form.get("settings"))
      .split("\n")
      .map((line) => line.split("="))
      .filter(([key]) => key.trim())
      .map(([key, ...value]) => [key.trim(), value.join("=").trim()]),
  );
  const settings = Object.fromEntries(
    [...new Set([...Object.keys(one.settings), ...Object.keys(wanted)])]
      .filter((key) => one.settings[key] !== wanted[key])
      .map((key) => [key, wanted[key] ?? null]),
  );
  if (Object.keys(settings).length) changes.settings = settings;
  return changes;
}
