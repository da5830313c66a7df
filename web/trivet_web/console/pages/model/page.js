// One model: its versions and names, files, template, tokenizer, and what runs of it.

import { change, get } from "../../base/api.js";
import { confirm } from "../../base/dialog.js";
import { byId, h } from "../../base/dom.js";
import { bindFilter, filterOf, setFilter } from "../../base/filters.js";
import { setChoices } from "../../base/form.js";
import { may, pageData } from "../../base/page_data.js";
import { errorBox } from "../../base/states.js";
import { makeTabs } from "../../base/tabs.js";
import { toast } from "../../base/toast.js";
import { t } from "../../base/texts.js";
import { showAliases } from "./aliases.js";
import { showFacts, showFiles, showSpec, showVersions } from "./facts.js";
import { TryOut } from "./try_out.js";

const name = pageData.thing ?? "";
const address = `/platform/v1/models/${encodeURIComponent(name)}`;
const version = byId("version");
const panel = () => h("div", { class: "stack" });
const panels = { facts: panel(), files: panel(), text: panel(), spec: panel() };
const tryOut = new TryOut(panels.text, name);

async function show() {
  if (!version.value) return;
  try {
    const details = await get(`/platform/v1/versions/${encodeURIComponent(`${name}:${version.value}`)}`);
    const model = await get(address);
    const aliases = h("section", { class: "card" });
    panels.facts.replaceChildren(showFacts(details), aliases, showVersions(model, details.version, choose));
    showAliases(aliases, model, show);
    panels.files.replaceChildren(showFiles(details));
    panels.spec.replaceChildren(showSpec(details));
    tryOut.show(details);
    showActions();
  } catch (error) {
    panels.facts.replaceChildren(errorBox(/** @type {any} */ (error), show));
  }
}

/** @param {number} number of a version */
function choose(number) {
  version.value = String(number);
  setFilter("version", version.value);
  show();
}

function showActions() {
  if (!may("operate")) return;
  const launch = h(
    "a",
    { class: "button primary", href: `/console/launch?model=${encodeURIComponent(`${name}:${version.value}`)}` },
    t("model.launch"),
  );
  const verify = h("button", { type: "button", onclick: () => check(verify) }, t("model.verify"));
  const remove = h("button", { type: "button", onclick: removeModel }, t("model.remove"));
  byId("actions").replaceChildren(remove, verify, launch);
}

/** @param {HTMLButtonElement} button */
async function check(button) {
  button.disabled = true;
  try {
    const { problems } = await change(
      "POST",
      `/platform/v1/versions/${encodeURIComponent(`${name}:${version.value}`)}/verify`,
    );
    if (problems.length)
      toast(problems.map((/** @type {any} */ one) => `${one.name}: ${one.problem}`).join("; "), { tone: "bad" });
    else toast(t("model.verified"));
  } catch (error) {
    toast(/** @type {Error} */ (error).message, { tone: "bad" });
  } finally {
    button.disabled = false;
  }
}

async function removeModel() {
  const isDone = await confirm({
    title: t("model.remove_title", { name }),
    text: t("model.remove_text"),
    yes: t("model.remove"),
    onYes: () => change("DELETE", address),
  });
  if (isDone) location.assign("/console/models");
}

makeTabs(byId("tabs"), [
  { name: "facts", title: t("model.tab.facts"), panel: panels.facts },
  { name: "files", title: t("model.tab.files"), panel: panels.files },
  { name: "text", title: t("model.tab.text"), panel: panels.text },
  { name: "spec", title: t("model.tab.spec"), panel: panels.spec },
]);
try {
  const model = await get(address);
  const numbers = model.versions.map((/** @type {any} */ one) => String(one.version)).reverse();
  const chosen = filterOf("version") || numbers[0];
  setChoices(
    version,
    numbers.map((/** @type {string} */ number) => [number, number]),
  );
  bindFilter(version, (number) => {
    if (!number) version.value = chosen;
    show();
  });
} catch (error) {
  panels.facts.replaceChildren(errorBox(/** @type {any} */ (error)));
}
