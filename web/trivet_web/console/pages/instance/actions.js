// What can be done with an instance.

import { change } from "../../base/api.js";
import { h } from "../../base/dom.js";
import { may } from "../../base/page_data.js";
import { stopDeployment } from "../../base/stopping.js";
import { toast } from "../../base/toast.js";
import { t, tn } from "../../base/texts.js";

let shown = "";

/** @param {HTMLElement} parent @param {Record<string, any>} instance */
export function showActions(parent, instance) {
  const key = `${instance.state} ${instance.deployment}`;
  if (key === shown || !may("operate")) return;
  shown = key;
  const { id, deployment, state } = instance;
  const stop = h("button", { type: "button", onclick: () => stopDeployment(deployment) }, t("instance.stop"));
  const reset = h("button", { type: "button", onclick: () => resetCache(id) }, t("instance.reset_cache"));
  parent.replaceChildren(
    ...[state === "ready" && reset, !["stopped", "stopping"].includes(state) && stop].filter((one) => one !== false),
  );
}

/** @param {string} id */
async function resetCache(id) {
  try {
    const { forgotten_tokens: tokens } = await change(
      "POST",
      `/platform/v1/instances/${encodeURIComponent(id)}/reset-prefix-cache`,
    );
    toast(tn("instance.forgotten", tokens));
  } catch (error) {
    toast(/** @type {Error} */ (error).message, { tone: "bad" });
  }
}
