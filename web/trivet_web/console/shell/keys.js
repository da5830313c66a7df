// The keyboard: g and a letter goes to a page, / to the filter, ? shows all keys, Ctrl+K finds anything.
// Single keys do nothing in fields, and can be switched off (WCAG 2.1.4).

import { openDialog } from "../base/dialog.js";
import { byId, h } from "../base/dom.js";
import { pageData } from "../base/page_data.js";
import { t } from "../base/texts.js";
import { openPalette } from "./palette.js";

const OFF = "trivet-no-single-keys";
const SECOND_KEY_MS = 1200;

export function listenToKeys() {
  let goesUntil = 0;
  document.addEventListener("keydown", (event) => {
    if ((event.ctrlKey || event.metaKey) && event.key.toLowerCase() === "k") {
      event.preventDefault();
      openPalette();
      return;
    }
    if (event.ctrlKey || event.metaKey || event.altKey || isTyping(event) || localStorage.getItem(OFF)) return;
    const page = performance.now() < goesUntil && pageData.pages.find((one) => one.key === event.key);
    goesUntil = event.key === "g" ? performance.now() + SECOND_KEY_MS : 0;
    if (page) location.assign(page.path);
    else if (event.key === "?") showKeys();
    else if (event.key === "/") focusFilter(event);
  });
  byId("palette-open").addEventListener("click", openPalette);
  byId("keys-open").addEventListener("click", () => {
    byId("user-menu").hidePopover();
    showKeys();
  });
}

/** @param {KeyboardEvent} event */
const isTyping = (event) =>
  event.target instanceof Element &&
  event.target.closest("input, textarea, select, [contenteditable], dialog") !== null;

/** @param {KeyboardEvent} event */
function focusFilter(event) {
  const field = /** @type {HTMLElement | null} */ (document.querySelector('input[type="search"]'));
  if (!field) return;
  event.preventDefault();
  field.focus();
}

function showKeys() {
  const rows = [
    ["Ctrl K", t("shell.key.palette")],
    ["/", t("shell.key.filter")],
    ["?", t("shell.keys")],
    ["Esc", t("shell.key.escape")],
    ...pageData.pages.filter((page) => page.key).map((page) => [`g ${page.key}`, page.title]),
  ];
  const box = h("input", { type: "checkbox", checked: !localStorage.getItem(OFF) });
  box.addEventListener("change", () => (box.checked ? localStorage.removeItem(OFF) : localStorage.setItem(OFF, "1")));
  openDialog({
    title: t("shell.keys"),
    body: [
      h(
        "dl",
        { class: "facts" },
        rows.flatMap(([keys, what]) => [
          h(
            "dt",
            {},
            keys
              .split(" ")
              .map((key) => [h("kbd", {}, key), " "])
              .flat(),
          ),
          h("dd", {}, what),
        ]),
      ),
      h("label", { class: "check" }, box, t("shell.single_keys")),
    ],
  });
}
