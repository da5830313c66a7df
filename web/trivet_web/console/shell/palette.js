// Ctrl+K: finds pages, deployments, instances and models by their names and opens them.

import { list } from "../base/api.js";
import { h, setAttribute } from "../base/dom.js";
import { matches } from "../base/filters.js";
import { may, pageData } from "../base/page_data.js";
import { t } from "../base/texts.js";

const MOST = 12;

/** @typedef {{name: string, kind: string, path: string}} Place */

/** @returns {Promise<Place[]>} */
async function things() {
  if (!may("read")) return [];
  const [deployments, models] = await Promise.all([list("/platform/v1/deployments"), list("/platform/v1/models")]);
  const place = (/** @type {string} */ kind, /** @type {string} */ folder, /** @type {string} */ name) => ({
    name,
    kind: t(`shell.kind.${kind}`),
    path: `/console/${folder}/${encodeURIComponent(name)}`,
  });
  return [
    ...deployments.map((one) => place("deployment", "deployments", one.name)),
    ...deployments.flatMap((one) =>
      one.instances.map((/** @type {any} */ instance) => place("instance", "instances", instance.id)),
    ),
    ...models.map((one) => place("model", "models", one.name)),
  ];
}

export function openPalette() {
  if (document.querySelector("dialog[open]")) return;
  /** @type {Place[]} */
  let places = pageData.pages.map((page) => ({ name: page.title, kind: t("shell.kind.page"), path: page.path }));
  let chosen = 0;
  const results = h("ul", { role: "listbox", id: "palette-results", "aria-label": t("shell.search") });
  const field = h("input", {
    type: "text",
    role: "combobox",
    "aria-expanded": "true",
    "aria-controls": "palette-results",
    "aria-label": t("shell.search"),
    placeholder: t("shell.search"),
    autocomplete: "off",
    spellcheck: "false",
  });
  const node = h("dialog", { class: "palette", "aria-label": t("shell.search") }, field, results);
  const found = () => places.filter((one) => matches(`${one.name} ${one.kind}`, field.value)).slice(0, MOST);
  const draw = () => {
    const shown = found();
    chosen = Math.min(chosen, Math.max(0, shown.length - 1));
    results.replaceChildren(
      ...shown.map((one, index) =>
        h(
          "li",
          {
            role: "option",
            id: `palette-${index}`,
            "aria-selected": String(index === chosen),
            onclick: () => location.assign(one.path),
          },
          h("span", {}, one.name),
          h("span", { class: "quiet" }, one.kind),
        ),
      ),
    );
    setAttribute(field, "aria-activedescendant", shown.length ? `palette-${chosen}` : "");
    results.children[chosen]?.scrollIntoView({ block: "nearest" });
  };
  field.addEventListener("input", () => {
    chosen = 0;
    draw();
  });
  field.addEventListener("keydown", (/** @type {KeyboardEvent} */ event) => {
    const step = { ArrowDown: 1, ArrowUp: -1 }[event.key];
    if (step) {
      event.preventDefault();
      chosen = Math.max(0, Math.min(found().length - 1, chosen + step));
      draw();
    }
    const wanted = found()[chosen];
    if (event.key === "Enter" && wanted) location.assign(wanted.path);
  });
  node.addEventListener("close", () => node.remove());
  node.addEventListener("click", (/** @type {MouseEvent} */ event) => event.target === node && node.close());
  document.body.append(node);
  draw();
  node.showModal();
  things().then(
    (more) => {
      places = [...places, ...more];
      draw();
    },
    () => undefined,
  ); // the pages are there all the same
}
