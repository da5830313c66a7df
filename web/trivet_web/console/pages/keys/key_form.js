// Makes a key, or changes what it may.

import { change, list } from "../../base/api.js";
import { codeBlock } from "../../base/copy.js";
import { openDialog } from "../../base/dialog.js";
import { h } from "../../base/dom.js";
import { field, input, select } from "../../base/form.js";
import { may } from "../../base/page_data.js";
import { saidNode } from "../../base/said.js";
import { t } from "../../base/texts.js";

const DAY_MS = 86_400_000;
const DAYS = ["30", "90", "365"];
const KEEP = "keep";
// A key's scope, and the right that its maker must have for it.
const SCOPES = [
  ["infer", "infer"],
  ["read", "read"],
  ["operate", "operate"],
  ["admin", "administer"],
];

/**
 * @param {boolean} isAdmin who also makes keys for others, and for the site
 * @returns {Promise<boolean>} whether one was made
 */
export async function askForKey(isAdmin) {
  /** @type {any} */
  let made = null;
  await openDialog({
    title: t("keys.create"),
    submit: t("keys.create"),
    body: [
      field(t("keys.column.name"), input("name", { required: true, maxlength: 64 }), t("keys.name_help")),
      scopesField(["infer"]),
      ...(isAdmin
        ? [
            field(t("keys.column.user"), input("user", { list: "users-known" }), t("keys.user_help")),
            await knownUsers(),
          ]
        : []),
      ...(await limitFields({})),
      field(t("keys.column.expires"), select("expires", expiryChoices(), "90", { required: true })),
    ],
    onSubmit: async (form) => {
      const user = text(form, "user");
      const body = { name: text(form, "name"), ...settingsOf(form), ...(user ? { user } : {}) };
      made = await change("POST", "/platform/v1/keys", body);
    },
  });
  if (!made) return false;
  await showKey(made);
  return true;
}

/** @param {any} key @returns {Promise<boolean>} whether it was changed */
export const editKey = async (key) =>
  openDialog({
    title: t("keys.edit_title", { name: key.name }),
    submit: t("keys.save"),
    body: [
      field(t("keys.column.name"), input("name", { required: true, maxlength: 64, value: key.name })),
      scopesField(key.scopes),
      ...(await limitFields(key)),
      field(
        t("keys.column.expires"),
        select("expires", [[KEEP, t("keys.keep_expiry")], ...expiryChoices()], KEEP, { required: true }),
      ),
    ],
    onSubmit: (form) => change("PATCH", `/platform/v1/keys/${key.id}`, changesOf(key, form)),
  });

/** What the form says otherwise than the key that it showed: the rest may have been changed meanwhile, and stays.
 * @param {any} key @param {FormData} form */
function changesOf(key, form) {
  const given = { name: text(form, "name"), ...settingsOf(form) };
  const changed = Object.entries(given).filter(([name, value]) => comparable(value) !== comparable(key[name]));
  return Object.fromEntries(changed);
}

/** Scopes and models are in no order. @param {any} value */
const comparable = (value) => JSON.stringify(Array.isArray(value) ? value.toSorted() : value);

/** Once: nobody can see it again. @param {any} made */
const showKey = (made) =>
  openDialog({
    title: t("keys.made_title", { name: made.name }),
    body: [
      ...made.notices.map((/** @type {string} */ text) => saidNode("p", { role: "note" }, text)),
      h("p", {}, t("keys.made_text")),
      codeBlock(made.key),
      h("p", { class: "field-label" }, t("keys.made_example")),
      codeBlock(`curl ${location.origin}/v1/models \\\n  -H "Authorization: Bearer ${made.key}"`),
    ],
  });

/** @param {string[]} chosen */
function scopesField(chosen) {
  const offered = SCOPES.filter(([scope, right]) => chosen.includes(scope) || may(right));
  return h(
    "fieldset",
    { class: "field" },
    h("legend", { class: "field-label" }, t("keys.column.scopes")),
    offered.map(([scope]) =>
      h(
        "label",
        { class: "check" },
        h("input", { type: "checkbox", name: `scope-${scope}`, checked: chosen.includes(scope) }),
        scope,
        h("span", { class: "help" }, t(`keys.scope.${scope}`)),
      ),
    ),
  );
}

/** @param {any} key with the values to begin with */
async function limitFields(key) {
  const names = (await list("/v1/models").catch(() => [])).filter((one) => !one.parent).map((one) => one.id);
  return [
    field(
      t("keys.column.models"),
      input("models", { value: key.models?.join(", ") ?? "", placeholder: names.slice(0, 3).join(", ") }),
      t("keys.models_help"),
    ),
    h(
      "div",
      { class: "form-row" },
      field(
        t("keys.max_concurrency"),
        input("max_concurrency", { type: "number", min: 1, value: key.max_concurrency ?? "" }),
      ),
      field(
        t("keys.requests_per_minute"),
        input("requests_per_minute", { type: "number", min: 1, value: key.requests_per_minute ?? "" }),
      ),
      field(
        t("keys.priority"),
        input("priority", { type: "number", min: 0, max: 9, value: key.priority ?? 0 }),
        t("keys.priority_help"),
      ),
    ),
  ];
}

async function knownUsers() {
  const users = await list("/platform/v1/users").catch(() => []);
  return h(
    "datalist",
    { id: "users-known" },
    users.map((one) => h("option", { value: one.name })),
  );
}

/** @returns {[string, string][]} */
const expiryChoices = () => [
  ...DAYS.map((days) => /** @type {[string, string]} */ ([days, t("keys.in_days", { days })])),
  ["", t("keys.never")],
];

/** @param {FormData} form @param {string} name */
const text = (form, name) => String(form.get(name) ?? "").trim();

/** @param {FormData} form @param {string} name */
const numberOrNull = (form, name) => (text(form, name) ? Number(text(form, name)) : null);

/** @param {FormData} form */
function settingsOf(form) {
  const models = text(form, "models")
    .split(/[,\s]+/)
    .filter(Boolean);
  const expires = text(form, "expires");
  return {
    scopes: SCOPES.map(([scope]) => scope).filter((scope) => form.has(`scope-${scope}`)),
    models: models.length ? models : null,
    max_concurrency: numberOrNull(form, "max_concurrency"),
    requests_per_minute: numberOrNull(form, "requests_per_minute"),
    priority: numberOrNull(form, "priority") ?? 0,
    ...(expires === KEEP
      ? {}
      : { expires_at: expires ? new Date(Date.now() + Number(expires) * DAY_MS).toISOString() : null }),
  };
}
