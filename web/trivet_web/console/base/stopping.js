// Ends a deployment after a question that says what happens to its requests.

import { change } from "./api.js";
import { openDialog } from "./dialog.js";
import { h } from "./dom.js";
import { toast } from "./toast.js";
import { doAll } from "./selection.js";
import { t, tn } from "./texts.js";

/** @param {string[]} names @returns {Promise<boolean>} whether all of them were told to end */
export async function stopDeployments(names) {
  const name = names.length === 1 ? names[0] : tn("base.stop.number", names.length);
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
      names.length > 1 && h("p", { class: "quiet" }, names.join(", ")),
      h(
        "div",
        { class: "stack", role: "radiogroup", "aria-label": t("base.stop.title", { name }) },
        choice("drain", true),
        choice("now", false),
      ),
    ],
    submit: t("base.stop.submit"),
    isDanger: true,
    onSubmit: (form) => {
      const query = form.get("how") === "now" ? "?drain_timeout_s=0" : "";
      const address = (/** @type {string} */ one) => `/platform/v1/deployments/${encodeURIComponent(one)}${query}`;
      if (names.length === 1) return change("DELETE", address(names[0]));
      return doAll(
        names,
        (one) => change("DELETE", address(one)),
        (one) => one,
      );
    },
  });
  if (isDone) toast(t("base.stop.done", { name }));
  return isDone;
}

/** @param {string} name */
export const stopDeployment = (name) => stopDeployments([name]);
