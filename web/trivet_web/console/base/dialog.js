// Questions in a dialog: the browser's own <dialog>, which keeps the focus and closes with Esc.

import { errorBox } from "./states.js";
import { h, icon } from "./dom.js";
import { t } from "./texts.js";

let number = 0;

/**
 * A dialog with a form. It closes when `submit` has done its work, and shows why where it has not.
 *
 * @param {{title: string, body: (Node | string | false)[], submit?: string, isDanger?: boolean, isWide?: boolean,
 *   onSubmit?: (form: FormData) => Promise<void> | void}} given `submit` is the button's word
 * @returns {Promise<boolean>} whether it was submitted
 */
export function openDialog({ title, body, submit, isDanger = false, isWide = false, onSubmit }) {
  const id = `dialog-title-${(number += 1)}`;
  const error = h("div");
  const button = submit && h("button", { type: "submit", class: isDanger ? "danger" : "primary" }, submit);
  const form = h(
    "form",
    { method: "dialog" },
    h("div", { class: "dialog-body" }, body, error),
    h(
      "div",
      { class: "dialog-end" },
      h("button", { type: "button", onclick: () => node.close() }, t(submit ? "base.cancel" : "base.close")),
      button,
    ),
  );
  const close = h(
    "button",
    { type: "button", class: "ghost only-icon", "aria-label": t("base.close"), onclick: () => node.close() },
    icon("close"),
  );
  const node = h(
    "dialog",
    { class: isWide ? "wide" : null, "aria-labelledby": id },
    h("header", {}, h("h2", { id }, title), close),
    form,
  );
  let isDone = false;
  form.addEventListener("submit", async (/** @type {SubmitEvent} */ event) => {
    event.preventDefault();
    if (!button) return node.close();
    button.disabled = true;
    try {
      await onSubmit?.(new FormData(form));
      isDone = true;
      node.close();
    } catch (problem) {
      error.replaceChildren(errorBox(/** @type {any} */ (problem)));
    } finally {
      button.disabled = false;
    }
  });
  document.body.append(node);
  node.showModal();
  (node.querySelector(".dialog-body :is(input, select, textarea)") ?? node.querySelector(".dialog-end button")).focus();
  return new Promise((resolve) => {
    node.addEventListener("close", () => {
      node.remove();
      resolve(isDone);
    });
  });
}

/** Before something that cannot be undone. @param {{title: string, text: string, yes: string, onYes?: () => Promise<void>}} given */
export const confirm = ({ title, text, yes, onYes }) =>
  openDialog({ title, body: [h("p", {}, text)], submit: yes, isDanger: true, onSubmit: onYes });
