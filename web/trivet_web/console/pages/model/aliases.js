// Movable names of a model's versions.

import { change, list } from "../../base/api.js";
import { confirm, openDialog } from "../../base/dialog.js";
import { h } from "../../base/dom.js";
import { field, input, select } from "../../base/form.js";
import { fullTime, timeNode } from "../../base/format.js";
import { may } from "../../base/page_data.js";
import { plainTable } from "../../base/plain_table.js";
import { toast } from "../../base/toast.js";
import { t } from "../../base/texts.js";

/** @param {HTMLElement} card @param {any} model @param {() => void} onChange */
export function showAliases(card, model, onChange) {
  const place = (/** @type {string} */ alias) =>
    `/platform/v1/aliases/${encodeURIComponent(model.name)}/${encodeURIComponent(alias)}`;
  const rows = Object.entries(model.aliases).map(([alias, version]) =>
    h(
      "tr",
      {},
      h("td", {}, h("code", {}, `${model.name}:${alias}`)),
      h("td", { class: "nowrap" }, t("model.points_at", { version: String(version) })),
      h(
        "td",
        { class: "actions" },
        h(
          "button",
          { type: "button", class: "small", onclick: () => showHistory(model.name, alias, place(alias)) },
          t("model.history"),
        ),
        may("operate") && [
          h(
            "button",
            {
              type: "button",
              class: "small",
              onclick: () => move(model, alias, place).then((isDone) => isDone && onChange()),
            },
            t("model.move"),
          ),
          h(
            "button",
            {
              type: "button",
              class: "small",
              onclick: () => rollBack(`${model.name}:${alias}`, place(alias)).then((isDone) => isDone && onChange()),
            },
            t("model.roll_back"),
          ),
          h(
            "button",
            {
              type: "button",
              class: "small",
              onclick: () => remove(`${model.name}:${alias}`, place(alias)).then((isDone) => isDone && onChange()),
            },
            t("model.remove"),
          ),
        ],
      ),
    ),
  );
  const add =
    may("operate") &&
    h(
      "button",
      { type: "button", class: "small", onclick: () => move(model, "", place).then((isDone) => isDone && onChange()) },
      t("model.new_alias"),
    );
  const body = rows.length
    ? h(
        "div",
        { class: "table-scroll", tabindex: "0", role: "region", "aria-label": t("model.aliases") },
        h("table", {}, h("tbody", {}, rows)),
      )
    : h("p", { class: "quiet" }, t("model.no_aliases"));
  card.replaceChildren(h("div", { class: "card-head" }, h("h2", {}, t("model.aliases")), add || ""), body);
}

/** @param {string} name @param {string} address */
const remove = (name, address) =>
  confirm({
    title: t("model.remove_title", { name }),
    text: t("model.remove_alias_text"),
    yes: t("model.remove"),
    onYes: () => change("DELETE", address),
  });

/** A second one would go forth again: so it is asked. @param {string} name @param {string} address */
const rollBack = (name, address) =>
  confirm({
    title: t("model.roll_back_title", { name }),
    text: t("model.roll_back_text"),
    yes: t("model.roll_back"),
    onYes: () => change("POST", `${address}/roll-back`),
  });

/** Where it has pointed, the newest first. @param {string} model @param {string} alias @param {string} address */
async function showHistory(model, alias, address) {
  try {
    const moves = await list(`${address}/history`);
    const version = (/** @type {number | null} */ number) => (number === null ? "–" : String(number));
    const time = (/** @type {string} */ at) => h("span", { title: fullTime(at) }, timeNode(at));
    const title = t("model.history_title", { name: `${model}:${alias}` });
    /** @type {[string, string?][]} */
    const heads = [
      [t("model.move_column.at")],
      [t("model.move_column.from"), "number"],
      [t("model.move_column.to"), "number"],
    ];
    const rows = moves.map((/** @type {any} */ move) => [time(move.at), version(move.from), version(move.to)]);
    await openDialog({ title, body: [plainTable(title, heads, rows)] });
  } catch (error) {
    toast(/** @type {Error} */ (error).message, { tone: "bad" });
  }
}

/** @param {any} model @param {string} alias empty: a new one @param {(alias: string) => string} place */
function move(model, alias, place) {
  const versions = model.versions
    .map((/** @type {any} */ one) => /** @type {[string, string]} */ ([String(one.version), String(one.version)]))
    .reverse();
  return openDialog({
    title: alias ? t("model.move_title", { alias }) : t("model.new_alias"),
    body: [
      h("p", { class: "quiet" }, t("model.alias_note")),
      field(t("model.alias"), input("alias", { required: true, value: alias, readonly: alias !== "" })),
      field(t("model.version"), select("version", versions)),
    ],
    submit: t("model.save"),
    onSubmit: (form) => change("PUT", place(String(form.get("alias"))), { version: String(form.get("version")) }),
  });
}
