// Tabs, with the chosen one in the address. Arrow keys move between them.

import { h } from "./dom.js";
import { filterOf, setFilter } from "./filters.js";

/**
 * @param {HTMLElement} parent
 * @param {{name: string, title: string, panel: HTMLElement, onShow?: () => void}[]} tabs
 * @param {string} [parameter] of the address
 */
export function makeTabs(parent, tabs, parameter = "tab") {
  const buttons = tabs.map(({ name, title, panel }) => {
    panel.id ||= `panel-${name}`;
    panel.setAttribute("role", "tabpanel");
    panel.setAttribute("aria-labelledby", `tab-${name}`);
    return h(
      "button",
      { type: "button", role: "tab", id: `tab-${name}`, "aria-controls": panel.id, onclick: () => show(name) },
      title,
    );
  });
  const bar = h("div", { class: "tabs", role: "tablist" }, buttons);
  bar.addEventListener("keydown", (/** @type {KeyboardEvent} */ event) => {
    const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    if (!step) return;
    const at = tabs.findIndex((tab) => !tab.panel.hidden);
    const next = (at + step + tabs.length) % tabs.length;
    show(tabs[next].name);
    buttons[next].focus();
  });
  const show = (/** @type {string} */ wanted) => {
    const name = tabs.some((tab) => tab.name === wanted) ? wanted : tabs[0].name;
    tabs.forEach((tab, index) => {
      tab.panel.hidden = tab.name !== name;
      buttons[index].setAttribute("aria-selected", String(tab.name === name));
      buttons[index].tabIndex = tab.name === name ? 0 : -1;
      if (tab.name === name) tab.onShow?.();
    });
    setFilter(parameter, name === tabs[0].name ? "" : name);
  };
  parent.replaceChildren(bar, ...tabs.map((tab) => tab.panel));
  show(filterOf(parameter));
  return { show };
}
