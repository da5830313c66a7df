// Registers a model: files on the server, or a source that they are pulled from.

import { change, list } from "../../base/api.js";
import { openDialog } from "../../base/dialog.js";
import { h } from "../../base/dom.js";
import { checkbox, field, input } from "../../base/form.js";
import { bytes } from "../../base/format.js";
import { t, tn } from "../../base/texts.js";
import { toast } from "../../base/toast.js";

/** @returns {Promise<boolean>} whether something is added, or on its way */
export function openAdd() {
  const help = h("span", {}, t("models.path_help"));
  const path = field(
    t("models.path"),
    input("path", { required: true, placeholder: "/models/Qwen2.5-0.5B-Instruct", list: "models-found" }),
    help,
  );
  const choices = h("datalist", { id: "models-found" });
  offerFound(choices, help);
  const copy = checkbox("copy", t("models.copy"), t("models.copy_help"));
  const source = field(t("models.source"), input("source", { placeholder: "hf:org/name" }), t("models.source_help"));
  const key = field(t("models.key"), input("key", { type: "password" }), t("models.key_help"));
  const parts = { files: [path, copy], pull: [source, key] };
  const show = (/** @type {"files" | "pull"} */ kind) => {
    for (const [name, nodes] of Object.entries(parts)) for (const node of nodes) node.hidden = name !== kind;
    /** @type {HTMLInputElement} */ (path.querySelector("input")).required = kind === "files";
    /** @type {HTMLInputElement} */ (source.querySelector("input")).required = kind === "pull";
  };
  const choice = (/** @type {"files" | "pull"} */ kind) =>
    h(
      "label",
      { class: "check" },
      h("input", { type: "radio", name: "kind", value: kind, checked: kind === "files", onchange: () => show(kind) }),
      t(`models.kind.${kind}`),
    );
  show("files");
  return openDialog({
    title: t("models.add"),
    body: [
      h("div", { class: "row", role: "radiogroup", "aria-label": t("models.kind") }, choice("files"), choice("pull")),
      ...parts.files,
      choices,
      ...parts.pull,
      field(t("models.name"), input("name", { placeholder: t("models.name_placeholder") })),
    ],
    submit: t("models.add"),
    onSubmit: (form) => add(form),
  });
}

/** Files that lie on the server, as choices of the path. @param {HTMLElement} choices @param {HTMLElement} help */
async function offerFound(choices, help) {
  const all = await list("/platform/v1/model-files").catch(() => []); // a path can be typed
  const found = all.filter((one) => !one.is_registered);
  choices.replaceChildren(
    ...found.map((one) => h("option", { value: one.path }, `${one.name} · ${bytes(one.size_bytes)}`)),
  );
  if (found.length) help.textContent = tn("models.path_found", found.length);
}

/** @param {FormData} form */
async function add(form) {
  const text = (/** @type {string} */ name) => String(form.get(name) ?? "").trim() || null;
  if (form.get("kind") === "pull") {
    await change("POST", "/platform/v1/pulls", { source: text("source"), name: text("name"), key: text("key") });
    toast(t("models.pull_begun", { source: text("source") ?? "" }));
    return;
  }
  const made = await change("POST", "/platform/v1/models", {
    path: text("path"),
    name: text("name"),
    copy: form.get("copy") !== null,
  });
  toast(t("models.is_added", { name: `${made.name}:${made.version}` }));
}
