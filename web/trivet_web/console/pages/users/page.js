// Users: who can log in, what they may, where they are logged in.

import { change, list } from "../../base/api.js";
import { badge } from "../../base/badge.js";
import { confirm, openDialog } from "../../base/dialog.js";
import { byId, h } from "../../base/dom.js";
import { field, input, select } from "../../base/form.js";
import { count, timeNode } from "../../base/format.js";
import { pageData } from "../../base/page_data.js";
import { keepFresh } from "../../base/refreshing.js";
import { LiveTable } from "../../base/table.js";
import { t } from "../../base/texts.js";
import { toast } from "../../base/toast.js";
import { newPassword } from "./new_password.js";

const ROLES = ["viewer", "user", "operator", "admin"];

/** Logins by the user's name. @type {Map<string, any[]>} */
const sessions = new Map();

/** @param {any} user */
const numSessions = (user) => sessions.get(user.name)?.length ?? 0;

/** @param {any} user */
const addressOf = (user) => `/platform/v1/users/${encodeURIComponent(user.name)}`;

/** @type {import("../../base/table.js").Column<any>[]} */
const columns = [
  {
    key: "name",
    title: t("users.column.name"),
    value: (user) => user.name,
    cell: (user) =>
      h(
        "span",
        { class: "row" },
        h("bdi", {}, user.name),
        user.name === pageData.user && h("span", { class: "tag" }, t("users.you")),
      ),
  },
  {
    key: "role",
    title: t("users.column.role"),
    value: (user) => ROLES.indexOf(user.role),
    cell: (user) => t(`shell.role.${user.role}`),
  },
  {
    key: "state",
    title: t("users.column.state"),
    value: (user) => user.is_disabled,
    cell: (user) => (user.is_disabled ? badge("quiet", t("users.disabled")) : badge("ok", t("users.active"))),
  },
  {
    key: "sessions",
    title: t("users.column.sessions"),
    value: numSessions,
    cell: (user) => count(numSessions(user)),
    isNumber: true,
  },
  {
    key: "login",
    title: t("users.column.login"),
    value: (user) => user.last_login_at ?? "",
    cell: (user) =>
      user.last_login_at ? timeNode(user.last_login_at) : h("span", { class: "quiet" }, t("users.never")),
  },
  {
    key: "created",
    title: t("users.column.created"),
    value: (user) => user.created_at,
    cell: (user) => timeNode(user.created_at),
  },
  {
    key: "actions",
    title: t("users.column.actions"),
    value: (user) => `${user.is_disabled} ${numSessions(user)}`,
    cell: actions,
    isPlain: true,
    class: "actions",
  },
];

const table = new LiveTable(byId("users"), {
  columns,
  keyOf: (user) => user.name,
  label: t("shell.page.users"),
  empty: t("users.none"),
  sort: "name",
});

/** @param {any} user @param {() => any} now */
function actions(user, now) {
  const button = (/** @type {string} */ word, /** @type {() => unknown} */ act) =>
    h("button", { type: "button", class: "small", onclick: act }, word);
  return h(
    "span",
    { class: "nowrap" },
    button(t("users.change_role"), () => changeRole(now())),
    button(t("users.reset_password"), () => resetPassword(user)),
    numSessions(user) > 0 && button(t("users.end_sessions"), () => endSessions(user)),
    user.is_disabled
      ? button(t("users.enable"), () => setDisabled(user, false))
      : button(t("users.disable"), () => setDisabled(user, true)),
    button(t("users.remove"), () => remove(user)),
  );
}

/** Does it, says so, and shows what is true then. @param {string} said @param {Promise<boolean>} asked */
async function after(said, asked) {
  if (!(await asked)) return;
  toast(said);
  load();
}

const create = () =>
  after(
    t("users.is_created"),
    openDialog({
      title: t("users.create"),
      submit: t("users.create"),
      body: [
        field(t("users.column.name"), input("name", { required: true, maxlength: 64 })),
        field(t("users.column.role"), roleSelect("user"), roleHelp()),
        ...newPassword(),
      ],
      onSubmit: (form) =>
        change("POST", "/platform/v1/users", {
          name: form.get("name"),
          role: form.get("role"),
          password: form.get("password"),
        }),
    }),
  );

/** @param {any} user */
const changeRole = (user) =>
  after(
    t("users.is_changed", { name: user.name }),
    openDialog({
      title: t("users.change_role_title", { name: user.name }),
      submit: t("users.save"),
      body: [
        field(t("users.column.role"), roleSelect(user.role), roleHelp()),
        h("p", { class: "help" }, t("users.sessions_end")),
      ],
      onSubmit: (form) => change("PATCH", addressOf(user), { role: form.get("role") }),
    }),
  );

/** @param {any} user */
const resetPassword = (user) =>
  after(
    t("users.is_changed", { name: user.name }),
    openDialog({
      title: t("users.reset_password_title", { name: user.name }),
      submit: t("users.save"),
      body: [...newPassword(), h("p", { class: "help" }, t("users.sessions_end"))],
      onSubmit: (form) => change("PATCH", addressOf(user), { password: form.get("password") }),
    }),
  );

/** @param {any} user @param {boolean} isDisabled */
async function setDisabled(user, isDisabled) {
  const act = () => change("PATCH", addressOf(user), { is_disabled: isDisabled });
  if (isDisabled) {
    const asked = confirm({
      title: t("users.disable_title", { name: user.name }),
      text: t("users.disable_text"),
      yes: t("users.disable"),
      onYes: act,
    });
    return after(t("users.is_changed", { name: user.name }), asked);
  }
  try {
    await act();
    return after(t("users.is_changed", { name: user.name }), Promise.resolve(true));
  } catch (error) {
    return toast(/** @type {Error} */ (error).message, { tone: "bad" });
  }
}

/** @param {any} user */
const endSessions = (user) =>
  after(
    t("users.sessions_ended", { name: user.name }),
    confirm({
      title: t("users.end_sessions_title", { name: user.name }),
      text: t("users.end_sessions_text"),
      yes: t("users.end_sessions"),
      onYes: async () => {
        for (const session of sessions.get(user.name) ?? [])
          await change("DELETE", `/platform/v1/sessions/${session.id}`);
      },
    }),
  );

/** @param {any} user */
const remove = (user) =>
  after(
    t("users.is_removed", { name: user.name }),
    confirm({
      title: t("users.remove_title", { name: user.name }),
      text: t("users.remove_text"),
      yes: t("users.remove"),
      onYes: () => change("DELETE", addressOf(user)),
    }),
  );

/** @param {string} chosen */
const roleSelect = (chosen) =>
  select(
    "role",
    ROLES.map((role) => [role, t(`shell.role.${role}`)]),
    chosen,
    { required: true },
  );

const roleHelp = () =>
  h(
    "span",
    {},
    ROLES.map((role) => h("span", { class: "block" }, `${t(`shell.role.${role}`)}: ${t(`users.role.${role}`)}`)),
  );

async function load() {
  try {
    const [users, logins] = await Promise.all([list("/platform/v1/users"), list("/platform/v1/sessions?all=1")]);
    sessions.clear();
    for (const one of logins) sessions.set(one.user, [...(sessions.get(one.user) ?? []), one]);
    table.show(users);
  } catch (error) {
    table.fail(/** @type {any} */ (error), load);
  }
}

byId("toolbar").append(table.filterField());
byId("create").addEventListener("click", create);
load();
keepFresh(load);
