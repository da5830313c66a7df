// One's own account: the password, and where one is logged in.

import { change, list } from "../../base/api.js";
import { byId, h } from "../../base/dom.js";
import { field, input, showFieldError } from "../../base/form.js";
import { timeNode } from "../../base/format.js";
import { pageData } from "../../base/page_data.js";
import { errorBox } from "../../base/states.js";
import { LiveTable } from "../../base/table.js";
import { t } from "../../base/texts.js";
import { toast } from "../../base/toast.js";

/** @param {HTMLFormElement} form */
function showPassword(form) {
  const problem = h("div");
  const submit = h("button", { type: "submit" }, t("account.change_password"));
  form.append(
    h("input", { name: "username", autocomplete: "username", value: pageData.user ?? "", hidden: true }),
    field(
      t("account.current"),
      input("current", { type: "password", required: true, autocomplete: "current-password" }),
    ),
    field(
      t("account.new"),
      input("password", { type: "password", required: true, minlength: 12, autocomplete: "new-password" }),
      t("account.new_help"),
    ),
    problem,
    h("div", {}, submit),
  );
  form.addEventListener("submit", async (event) => {
    event.preventDefault();
    submit.disabled = true;
    problem.replaceChildren();
    showFieldError(form, null);
    const given = new FormData(form);
    try {
      await change("POST", "/platform/v1/password", { current: given.get("current"), password: given.get("password") });
      form.reset();
      toast(t("account.is_changed"));
      load();
    } catch (error) {
      const found = /** @type {any} */ (error);
      if (!showFieldError(form, found)) problem.replaceChildren(errorBox(found));
    } finally {
      submit.disabled = false;
    }
  });
}

/** @type {import("../../base/table.js").Column<any>[]} */
const columns = [
  {
    key: "agent",
    title: t("account.column.agent"),
    value: (one) => one.user_agent,
    cell: (one) =>
      h(
        "span",
        { class: "row" },
        h("bdi", { class: "agent" }, one.user_agent || "–"),
        one.is_current && h("span", { class: "tag" }, t("account.this_login")),
      ),
  },
  { key: "address", title: t("account.column.address"), value: (one) => one.address },
  {
    key: "created",
    title: t("account.column.created"),
    value: (one) => one.created_at,
    cell: (one) => timeNode(one.created_at),
  },
  {
    key: "seen",
    title: t("account.column.seen"),
    value: (one) => one.last_seen_at,
    cell: (one) => timeNode(one.last_seen_at),
  },
  {
    key: "end",
    title: t("account.column.end"),
    value: (one) => one.id,
    cell: (one) =>
      one.is_current ? "" : h("button", { type: "button", class: "small", onclick: () => end(one) }, t("account.end")),
    isPlain: true,
    class: "actions",
  },
];

/** @type {LiveTable<any> | null} */
let table = null;

/** @param {any} session */
async function end(session) {
  try {
    await change("DELETE", `/platform/v1/sessions/${session.id}`);
    toast(t("account.ended"));
  } catch (error) {
    toast(/** @type {Error} */ (error).message, { tone: "bad" });
  }
  load();
}

async function load() {
  try {
    table?.show(await list("/platform/v1/sessions"));
  } catch (error) {
    table?.fail(/** @type {any} */ (error), load);
  }
}

if (pageData.user) {
  showPassword(byId("password"));
  table = new LiveTable(byId("sessions"), {
    columns,
    keyOf: (one) => one.id,
    label: t("account.sessions"),
    empty: t("account.no_sessions"),
    sort: "-seen",
  });
  load();
}
