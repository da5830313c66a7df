// Short news in a corner: what was done, or what failed. They stay while the pointer or focus is on them.

import { byId, h, icon } from "./dom.js";
import { t } from "./texts.js";

const SHOWN_MS = 6000;

/**
 * @param {string} text
 * @param {{tone?: "ok" | "warn" | "bad", action?: Node}} [more] a bad one stays until it is closed
 */
export function toast(text, { tone = "ok", action } = {}) {
  const close = h(
    "button",
    { type: "button", class: "ghost only-icon", "aria-label": t("base.close"), onclick: () => node.remove() },
    icon("close"),
  );
  const node = h(
    "div",
    { class: `toast ${tone}`, role: tone === "bad" ? "alert" : "status" },
    h("span", {}, text),
    action,
    close,
  );
  byId("toasts").append(node);
  if (tone === "bad") return;
  const leave = () => {
    if (node.matches(":hover, :focus-within")) setTimeout(leave, 1000);
    else node.remove();
  };
  setTimeout(leave, SHOWN_MS);
}
