// Fields with a label, help and the error that the server found in them.

import { h } from "./dom.js";
import { t } from "./texts.js";

let number = 0;

/**
 * A field: label above, help below, both told to screen readers.
 *
 * @param {string} label
 * @param {HTMLInputElement | HTMLSelectElement | HTMLTextAreaElement} control with a `name`
 * @param {string | Node} [help]
 * @returns {HTMLElement}
 */
export function field(label, control, help) {
  control.id ||= `field-${(number += 1)}`;
  const helpId = `${control.id}-help`;
  const errorId = `${control.id}-error`;
  control.setAttribute("aria-describedby", `${help ? `${helpId} ` : ""}${errorId}`);
  return h(
    "div",
    { class: "field", "data-field": control.name },
    h(
      "label",
      { for: control.id },
      label,
      control.required ? null : h("span", { class: "optional" }, t("base.optional")),
    ),
    control,
    h("p", { class: "field-error", id: errorId, role: "alert", hidden: true }),
    help && h("p", { class: "help", id: helpId }, help),
  );
}

/** @param {string} name @param {Record<string, any>} [attributes] @returns {HTMLInputElement} */
export const input = (name, attributes = {}) =>
  h("input", { name, autocomplete: "off", spellcheck: "false", ...attributes });

/** @param {string} name @param {Record<string, any>} [attributes] @returns {HTMLTextAreaElement} */
export const textarea = (name, attributes = {}) => h("textarea", { name, spellcheck: "false", rows: 3, ...attributes });

/** @param {string} name @param {[string, string][]} choices value and word @param {string} [chosen] @returns {HTMLSelectElement} */
export const select = (name, choices, chosen = "", attributes = {}) =>
  h(
    "select",
    { name, ...attributes },
    choices.map(([value, word]) => h("option", { value, selected: value === chosen }, word)),
  );

/** Replaces the choices where they differ, and keeps what is chosen. @param {HTMLSelectElement} node @param {[string, string][]} choices */
export function setChoices(node, choices) {
  const key = JSON.stringify(choices);
  if (node.dataset.choices === key) return;
  node.dataset.choices = key;
  const chosen = node.value;
  node.replaceChildren(...choices.map(([value, word]) => h("option", { value }, word)));
  if (choices.some(([value]) => value === chosen)) node.value = chosen;
}

/** A checkbox with its label. @param {string} name @param {string} label @param {string} [help] @param {boolean} [isOn] @returns {HTMLElement} */
export const checkbox = (name, label, help, isOn = false) =>
  h(
    "div",
    { class: "field" },
    h("label", { class: "check" }, h("input", { type: "checkbox", name, checked: isOn }), label),
    help && h("p", { class: "help" }, help),
  );

/**
 * Shows an error at the field that it names, and says whether there is one.
 *
 * @param {ParentNode} form
 * @param {import("./api.js").ApiError | null} error null: none any more
 */
export function showFieldError(form, error) {
  let isShown = false;
  for (const one of form.querySelectorAll(".field[data-field]")) {
    const place = /** @type {HTMLElement} */ (one.querySelector(".field-error"));
    const control = one.querySelector("input, select, textarea");
    const isIt = error?.param === /** @type {HTMLElement} */ (one).dataset.field;
    isShown ||= isIt;
    place.hidden = !isIt;
    place.textContent = isIt && error ? error.message : "";
    if (isIt) control?.setAttribute("aria-invalid", "true");
    else control?.removeAttribute("aria-invalid");
  }
  return isShown;
}
