// Changes what a deployment runs: new instances replace the old ones as they are ready.

import { change } from "../../base/api.js";
import { openDialog } from "../../base/dialog.js";
import { h } from "../../base/dom.js";
import { field, input, select, textarea } from "../../base/form.js";
import { live } from "../../base/live.js";
import { toast } from "../../base/toast.js";
import { t } from "../../base/texts.js";

/** @typedef {[string, string]} Choice */

/** How its model was named. @param {Record<string, any>} one */
const modelOf = (one) => `${one.model}:${one.alias ?? one.version}`;

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
      row(
        field(t("deployment.fact.model"), input("model", { value: modelOf(one), required: true })),
        field(
          t("deployment.replica_count"),
          input("replicas", { type: "number", min: 0, max: 64, value: one.replicas, required: true }),
        ),
      ),
      row(
        field(
          t("deployment.backend"),
          input("backend", { value: one.backend, required: true }),
          t("deployment.backend_help"),
        ),
        field(t("deployment.device"), select("device", devices(one.device), one.device ?? "")),
      ),
      row(
        field(
          t("deployment.fact.priority"),
          input("priority", { type: "number", step: 1, value: one.priority, required: true }),
          t("deployment.priority_help"),
        ),
        field(
          t("deployment.fact.fallback"),
          select("fallback", fallbacks(one), one.fallback ?? ""),
          t("deployment.fallback_help"),
        ),
      ),
      field(t("deployment.fact.settings"), settings, t("deployment.settings_help")),
    ],
    submit: t("deployment.update"),
    onSubmit: (form) =>
      change("PATCH", `/platform/v1/deployments/${encodeURIComponent(one.name)}`, {
        ...changesOf(one, form),
        if_updated_at: one.updated_at, // somebody else may have changed it meanwhile
      }),
  });
  if (isDone) toast(t("deployment.updating", { name: one.name }));
}

const row = (/** @type {HTMLElement[]} */ ...fields) => h("div", { class: "form-row" }, fields);

/** Usable ones, and the one that is chosen though it is not. @param {string | null} chosen @returns {Choice[]} */
function devices(chosen) {
  const known = [...(live.known.get("devices")?.values() ?? [])].filter(
    (one) => !one.unusable_because && one.kind !== "null",
  );
  const choices = known.map((one) => /** @type {Choice} */ ([one.uid, `${one.kind}:${one.index} ${one.name}`]));
  if (chosen && !known.some((one) => one.uid === chosen)) choices.push([chosen, chosen]);
  return [["", t("deployment.any_device")], ...choices];
}

/** @param {Record<string, any>} own @returns {Choice[]} */
function fallbacks(own) {
  const names = [...(live.known.get("deployments")?.values() ?? [])]
    .filter((one) => one.name !== own.name)
    .map((one) => one.name);
  if (own.fallback && !names.includes(own.fallback)) names.push(own.fallback);
  return [["", t("deployment.no_fallback")], ...names.map((name) => /** @type {Choice} */ ([name, name]))];
}

/** Only what differs; a setting that is gone is taken back. @param {Record<string, any>} one @param {FormData} form */
export function changesOf(one, form) {
  const text = (/** @type {string} */ name) => String(form.get(name) ?? "").trim();
  /** @type {Record<string, any>} */
  const wanted = {
    model: text("model"),
    backend: text("backend"),
    device: text("device") || null,
    replicas: Number(text("replicas")),
    priority: Number(text("priority")),
    fallback: text("fallback") || null,
  };
  /** @type {Record<string, any>} */
  const current = { ...one, model: modelOf(one) };
  const changes = Object.fromEntries(Object.entries(wanted).filter(([name, value]) => value !== current[name]));
  const settings = changedSettings(one.settings, settingsOf(String(form.get("settings"))));
  if (Object.keys(settings).length) changes.settings = settings;
  return changes;
}

/** Of lines of KEY=VALUE. @param {string} text @returns {Record<string, string>} */
function settingsOf(text) {
  const lines = text.split("\n").filter((line) => line.trim());
  return Object.fromEntries(
    lines.map((line) => line.split("=")).map(([key, ...value]) => [key.trim(), value.join("=").trim()]),
  );
}

/** @param {Record<string, string>} old @param {Record<string, string>} wanted @returns {Record<string, string | null>} */
function changedSettings(old, wanted) {
  const keys = [...new Set([...Object.keys(old), ...Object.keys(wanted)])];
  return Object.fromEntries(keys.filter((key) => old[key] !== wanted[key]).map((key) => [key, wanted[key] ?? null]));
}
