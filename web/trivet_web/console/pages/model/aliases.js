// Movable names of a model's versions.

import { change } from "../../base/api.js";
import { openDialog } from "../../base/dialog.js";
import { h } from "../../base/dom.js";
import { field, input, select } from "../../base/form.js";
import { may } from "../../base/page_data.js";
import { toast } from "../../base/toast.js";
import { t } from "../../base/texts.js";

/** @param {HTMLElement} card @param {any} model @param {() => void} onChange */
export function showAliases(card, model, onChange) {
  const place = (/** @type {string} */ alias) =>
    `/platform/v1/aliases/${encodeURIComponent(model.name)}/${encodeURIComponent(alias)}`;
  const act = async (/** @type {() => Promise<any>} */ work) => {
    try {
      await work();
      onChange();
    } catch (error) {
      toast(/** @type {Error} */ (error).message, { tone: "bad" });
    }
  };
  const rows = Object.entries(model.aliases).map(([alias, version]) =>
    h(
      "tr",
      {},
      h("td", {}, h("code", {}, `${model.name}:${alias}`)),
      h("td", {}, t("model.points_at", { version: String(version) })),
      h(
        "td",
        { class: "actions" },
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
            { type: "button", class: "small", onclick: () => act(() => change("POST", `${place(alias)}/roll-back`)) },
            t("model.roll_back"),
          ),
          h(
            "button",
            { type: "button", class: "small", onclick: () => act(() => change("DELETE", place(alias))) },
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
  const body = rows.length ? h("table", {}, h("tbody", {}, rows)) : h("p", { class: "quiet" }, t("model.no_aliases"));
  card.replaceChildren(h("div", { class: "card-head" }, h("h2", {}, t("model.aliases")), add || ""), body);
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
