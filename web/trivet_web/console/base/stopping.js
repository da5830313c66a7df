// Ends a deployment after a question that says what happens to its requests.

import { change } from "./api.js";
import { openDialog } from "./dialog.js";
import { h } from "./dom.js";
import { toast } from "./toast.js";
import { t } from "./texts.js";

/** @param {string} name */
export async function stopDeployment(name) {
  const choice = (/** @type {string} */ value, /** @type {boolean} */ isOn) =>
    h(
      "label",
      { class: "check" },
      h("input", { type: "radio", name: "how", value, checked: isOn }),
      t(`base.stop.${value}`),
    );
  const isDone = await openDialog({
    title: t("base.stop.title", { name }),
    body: [
      h(
        "div",
        { class: "stack", role: "radiogroup", "aria-label": t("base.stop.title", { name }) },
        choice("drain", true),
        choice("now", false),
      ),
    ],
    submit: t("base.stop.submit"),
    isDanger: true,
    onSubmit: (form) =>
      change(
        "DELETE",
        `/platform/v1/deployments/${encodeURIComponent(name)}${form.get("how") === "now" ? "?drain_timeout_s=0" : ""}`,
      ),
  });
  if (isDone) toast(t("base.stop.done", { name }));
}
