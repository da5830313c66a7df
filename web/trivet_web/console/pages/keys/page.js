// API keys: what each may, whose it is, when it was last used. The whole of a key is shown once, when it is made.

import { change, list } from "../../base/api.js";
import { badge } from "../../base/badge.js";
import { confirm } from "../../base/dialog.js";
import { byId, h, icon } from "../../base/dom.js";
import { filterOf, setFilter } from "../../base/filters.js";
import { count, timeNode } from "../../base/format.js";
import { may } from "../../base/page_data.js";
import { keepFresh } from "../../base/refreshing.js";
import { doAll, Selection } from "../../base/selection.js";
import { LiveTable } from "../../base/table.js";
import { t, tn } from "../../base/texts.js";
import { toast } from "../../base/toast.js";
import { askForKey, editKey } from "./key_form.js";
import { showUsage } from "./key_usage.js";

const isAdmin = may("administer");

/** @param {any} key */
const stateOf = (key) =>
  key.revoked_at ? "revoked" : key.expires_at && Date.parse(key.expires_at) <= Date.now() ? "expired" : "valid";

/** @type {Record<string, string>} */
const TONES = { valid: "ok", revoked: "quiet", expired: "warn" };

/** @param {any} key */
const limitsOf = (key) =>
  [
    key.max_concurrency !== null && t("keys.at_once", { count: count(key.max_concurrency) }),
    key.requests_per_minute !== null && t("keys.per_minute", { count: count(key.requests_per_minute) }),
    key.priority !== 0 && t("keys.priority_is", { value: key.priority }),
  ]
    .filter(Boolean)
    .join(", ");

/** @param {string[]} words */
const tags = (words) =>
  h(
    "span",
    { class: "row" },
    words.map((word) => h("span", { class: "tag" }, word)),
  );

/** @type {import("../../base/table.js").Column<any>[]} */
const columns = [
  { key: "name", title: t("keys.column.name"), value: (key) => key.name, cell: (key) => h("bdi", {}, key.name) },
  {
    key: "prefix",
    title: t("keys.column.prefix"),
    value: (key) => key.prefix,
    cell: (key) => h("code", { class: "nowrap" }, `${key.prefix}…`),
  },
  ...(isAdmin
    ? [
        {
          key: "user",
          title: t("keys.column.user"),
          value: (/** @type {any} */ key) => key.user ?? "",
          cell: (/** @type {any} */ key) =>
            key.user ? h("bdi", {}, key.user) : h("span", { class: "quiet" }, t("keys.of_site")),
        },
      ]
    : []),
  {
    key: "state",
    title: t("keys.column.state"),
    value: stateOf,
    cell: (key) => badge(TONES[stateOf(key)], t(`keys.state.${stateOf(key)}`)),
  },
  {
    key: "scopes",
    title: t("keys.column.scopes"),
    value: (key) => key.scopes.join(" "),
    cell: (key) => tags(key.scopes),
  },
  {
    key: "models",
    title: t("keys.column.models"),
    value: (key) => key.models?.join(" ") ?? "",
    cell: (key) => (key.models ? tags(key.models) : h("span", { class: "quiet" }, t("keys.all_models"))),
  },
  { key: "limits", title: t("keys.column.limits"), value: limitsOf },
  {
    key: "expires",
    title: t("keys.column.expires"),
    value: (key) => key.expires_at ?? "",
    cell: (key) => (key.expires_at ? timeNode(key.expires_at) : h("span", { class: "quiet" }, t("keys.never"))),
  },
  {
    key: "used",
    title: t("keys.column.used"),
    value: (key) => key.last_used_at ?? "",
    cell: (key) => (key.last_used_at ? timeNode(key.last_used_at) : h("span", { class: "quiet" }, t("keys.never"))),
  },
  { key: "actions", title: t("keys.column.actions"), value: stateOf, cell: actions, isPlain: true, class: "actions" },
];

/** @type {Selection<any>} */
const selection = new Selection({
  keyOf: (key) => String(key.id),
  nameOf: (key) => key.name,
  acts: [{ word: t("keys.revoke"), takes: (key) => stateOf(key) !== "revoked", run: revokeAll }],
});
const table = new LiveTable(byId("keys"), {
  columns,
  selection,
  keyOf: (key) => String(key.id),
  label: t("shell.page.keys"),
  empty: t("keys.none"),
  emptyAction: () => h("button", { type: "button", class: "primary", onclick: create }, t("keys.create")),
});

/** @param {any} key @param {() => any} now */
function actions(key, now) {
  const usage = h("button", { type: "button", class: "small", onclick: () => showUsage(now()) }, t("keys.usage"));
  if (stateOf(key) === "revoked") return usage;
  const edit =
    isAdmin &&
    h(
      "button",
      { type: "button", class: "small", onclick: async () => (await editKey(now())) && load() },
      icon("edit"),
      t("keys.edit"),
    );
  const end = h("button", { type: "button", class: "small", onclick: () => revoke(now()) }, t("keys.revoke"));
  return h("span", { class: "nowrap" }, usage, edit, end);
}

/** @param {any} key */
async function revoke(key) {
  const isDone = await confirm({
    title: t("keys.revoke_title", { name: key.name }),
    text: t("keys.revoke_text", { prefix: key.prefix }),
    yes: t("keys.revoke"),
    onYes: () => change("DELETE", `/platform/v1/keys/${key.id}`),
  });
  if (!isDone) return;
  toast(t("keys.is_revoked", { name: key.name }));
  load();
}

/** @param {any[]} keys */
async function revokeAll(keys) {
  const isDone = await confirm({
    title: tn("keys.revoke_all_title", keys.length),
    text: t("keys.revoke_all_text", { names: keys.map((key) => key.name).join(", ") }),
    yes: t("keys.revoke"),
    onYes: () =>
      doAll(
        keys,
        (key) => change("DELETE", `/platform/v1/keys/${key.id}`),
        (key) => key.name,
      ),
  });
  load();
  return isDone;
}

async function create() {
  if (await askForKey(isAdmin)) load();
}

async function load() {
  try {
    table.show(await list(`/platform/v1/keys${isAdmin ? "?all=1" : ""}`));
  } catch (error) {
    table.fail(/** @type {any} */ (error), load);
  }
}

const ended = byId("ended");
ended.checked = filterOf("ended") === "1";
const pickEnded = () => table.pick((key) => ended.checked || stateOf(key) === "valid");
ended.addEventListener("change", () => {
  setFilter("ended", ended.checked ? "1" : "");
  pickEnded();
});
pickEnded();
byId("toolbar").prepend(table.filterField());
byId("create").addEventListener("click", create);
load();
keepFresh(load);
