// Launch: what to run and where, and beside it what that takes, as the server plans it, before it is done.

import { change, get, list } from "../../base/api.js";
import { codeBlock } from "../../base/copy.js";
import { byId, h } from "../../base/dom.js";
import { filterOf } from "../../base/filters.js";
import { showFieldError } from "../../base/form.js";
import { commandOf } from "../../base/launch_command.js";
import { live } from "../../base/live.js";
import { errorBox } from "../../base/states.js";
import { t } from "../../base/texts.js";
import { Fit } from "./fit.js";
import { LaunchForm } from "./launch_form.js";

const form = new LaunchForm(byId("launch"));
const fit = new Fit(byId("fit"), byId("fit-state"), (setting, value) => {
  form.set(setting, value);
  changed();
});
const problem = h("div");
const submit = h("button", { type: "submit", class: "primary" }, t("launch.submit"));
form.node.append(problem, h("div", { class: "row end" }, submit));

function changed() {
  const body = form.body();
  byId("command").replaceChildren(codeBlock(commandOf(body)));
  showFieldError(form.node, null);
  fit.askSoon(body);
}

form.node.addEventListener("input", changed);
form.node.addEventListener("submit", async (/** @type {SubmitEvent} */ event) => {
  event.preventDefault();
  submit.disabled = true;
  problem.replaceChildren();
  try {
    const made = await change("POST", "/platform/v1/deployments", form.body());
    location.assign(`/console/deployments/${encodeURIComponent(made.name)}`);
  } catch (error) {
    const failure = /** @type {import("../../base/api.js").ApiError} */ (error);
    if (!showFieldError(form.node, failure)) problem.replaceChildren(errorBox(failure));
    submit.disabled = false;
  }
});

live.objects("devices", (all) => {
  form.showDevices([...all.values()]);
  fit.showDevices([...all.values()]);
});
live.objects("deployments", (all) => form.showDeployments([...all.keys()]));
const models = await list("/platform/v1/models").catch(() => []); // a path can be typed all the same
form.showModels(models);
await fillFrom(filterOf("from"));
changed();

/** @param {string} name of a deployment that shall be launched once more, or otherwise */
async function fillFrom(name) {
  if (!name) return;
  try {
    form.fill(await get(`/platform/v1/deployments/${encodeURIComponent(name)}`));
  } catch (error) {
    problem.replaceChildren(errorBox(/** @type {any} */ (error)));
  }
}
