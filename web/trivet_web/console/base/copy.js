// Copies text, and says that it has.

import { announce, h, icon } from "./dom.js";
import { t } from "./texts.js";

const SAID_MS = 1500;

/** @param {() => string} textOf @param {string} [label] beside the icon */
export function copyButton(textOf, label = "") {
  const button = h(
    "button",
    { type: "button", class: `small ${label ? "" : "ghost only-icon"}`, "aria-label": label ? null : t("base.copy") },
    icon("copy"),
    label,
  );
  button.addEventListener("click", async () => {
    await copyText(textOf());
    button.replaceChildren(icon("check"), label && t("base.copied"));
    announce(t("base.copied"));
    setTimeout(() => button.replaceChildren(icon("copy"), label), SAID_MS);
  });
  return button;
}

/** Over plain HTTP on another machine browsers have no clipboard: then by a selection. @param {string} text */
async function copyText(text) {
  if (navigator.clipboard) return navigator.clipboard.writeText(text);
  const area = h("textarea", { class: "visually-hidden" });
  area.value = text;
  document.body.append(area);
  area.select();
  document.execCommand("copy");
  return area.remove();
}

/** Code with a button that copies it. @param {string} text */
export const codeBlock = (text) =>
  h(
    "div",
    { class: "code-block" },
    h("pre", { tabindex: "0" }, text),
    copyButton(() => text),
  );
