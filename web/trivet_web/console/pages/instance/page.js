// One instance: what it is and does; where it failed, why, its last words and what would help, first of all.

import { ApiError, list } from "../../base/api.js";
import { byId, h } from "../../base/dom.js";
import { Failure } from "../../base/failure.js";
import { live } from "../../base/live.js";
import { pageData } from "../../base/page_data.js";
import { errorBox } from "../../base/states.js";
import { makeTabs } from "../../base/tabs.js";
import { t } from "../../base/texts.js";
import { Timeline } from "../../base/timeline.js";
import { showActions } from "./actions.js";
import { Batch } from "./batch.js";
import { showConfig } from "./config.js";
import { Figures } from "./figures.js";
import { LogTail } from "./log_tail.js";
import { Summary } from "./summary.js";

const id = pageData.thing ?? "";
const panel = () => h("div", { class: "stack" });
const panels = { live: panel(), metrics: panel(), logs: panel(), config: panel(), events: panel() };
const batch = new Batch(panels.live, id);
const figures = new Figures(panels.metrics, id);
const logs = new LogTail(panels.logs, id);
const eventCard = h("section", { class: "card" });
panels.events.append(eventCard);
const timeline = new Timeline(eventCard, (event) => event.instance === id, `instance=${encodeURIComponent(id)}`);
const summary = new Summary(byId("summary"));
const failure = new Failure(byId("failure"));

/** @type {Record<string, any> | null} */
let instance = null;
/** @type {Map<string, Record<string, any>>} by name */
let deployments = new Map();

/** @param {Record<string, any>} found */
function show(found) {
  instance = found;
  summary.show(found);
  failure.show(found, deployments.get(found.deployment));
  batch.follow(found);
  showActions(byId("actions"), found);
  showConfig(panels.config, found);
}

let hasAsked = false;

/** One that ended is in no stream. */
async function showEnded() {
  if (hasAsked) return;
  hasAsked = true;
  try {
    const all = await list("/platform/v1/instances?all=1");
    const found = all.find((one) => one.id === id);
    if (found) show(found);
    else throw new ApiError(t("instance.not_there", { id }), 404, { code: "not_found" });
  } catch (error) {
    byId("summary").replaceChildren(errorBox(/** @type {any} */ (error)));
  }
}

makeTabs(byId("tabs"), [
  { name: "live", title: t("instance.tab.live"), panel: panels.live },
  { name: "metrics", title: t("instance.tab.metrics"), panel: panels.metrics, onShow: () => figures.begin() },
  { name: "logs", title: t("instance.tab.logs"), panel: panels.logs, onShow: () => logs.begin() },
  { name: "config", title: t("instance.tab.config"), panel: panels.config },
  { name: "events", title: t("instance.tab.events"), panel: panels.events, onShow: () => timeline.begin() },
]);
live.objects("instances", (all) => {
  const found = all.get(id);
  if (found) show(found);
  else showEnded();
});
live.objects("deployments", (all) => {
  deployments = all;
  if (instance) failure.show(instance, all.get(instance.deployment));
});
live.figures((at, found) => figures.add(at, found));
live.onStatus((status) => summary.stale(status === "live" || !live.asOf || !instance ? null : live.asOf));
