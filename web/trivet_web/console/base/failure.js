// Why an instance failed or cannot start, what would help, and its last words: above everything else.
//
// What would help is the planner's: where the launch does not fit, each change that makes it fit is one click.

import { change, getText } from "./api.js";
import { badge, stateWord, toneOf } from "./badge.js";
import { codeBlock } from "./copy.js";
import { h, icon } from "./dom.js";
import { may } from "./page_data.js";
import { visibleText, withoutEscapes } from "./plain_text.js";
import { saidNode } from "./said.js";
import { t } from "./texts.js";
import { toast } from "./toast.js";

const LAST_LINES = 20;
const SHOWN_CHANGES = 4;

/** Whether somebody has to do something about it. @param {Record<string, any>} instance */
export const isFailing = ({ state, reason }) => toneOf(state) === "bad" || (state === "pending" && Boolean(reason));

/** The one of a deployment that tells most: failed, else waiting for a reason, else working with warnings.
 * @param {Record<string, any>[]} instances @returns {Record<string, any> | null} */
export function worstOf(instances) {
  const newest = [...instances].sort((a, b) => b.generation - a.generation);
  return (
    newest.find((one) => toneOf(one.state) === "bad") ??
    newest.find(isFailing) ??
    newest.find((one) => one.notices.length) ??
    null
  );
}

export class Failure {
  /** @param {HTMLElement} place @param {{namesInstance?: boolean}} [given] */
  constructor(place, { namesInstance = false } = {}) {
    this.place = place;
    this.namesInstance = namesInstance;
    this.shown = "";
  }

  /**
   * @param {Record<string, any> | null} instance
   * @param {Record<string, any> | undefined} deployment its own, where it is known
   */
  show(instance, deployment) {
    this.place.hidden = !instance || (!isFailing(instance) && !instance.notices.length);
    if (!instance || this.place.hidden) {
      this.shown = "";
      return;
    }
    const { settings, backend, device, desired } = deployment ?? {};
    const key = JSON.stringify([
      instance.id,
      instance.state,
      instance.reason,
      instance.notices,
      instance.attempt,
      settings,
      backend,
      device,
      desired,
    ]);
    if (key === this.shown) return;
    this.shown = key;
    this.draw(instance, deployment, key);
  }

  /** @param {Record<string, any>} instance @param {Record<string, any> | undefined} deployment @param {string} key */
  draw(instance, deployment, key) {
    const isBad = isFailing(instance);
    const help = h("div");
    const lines = h("div");
    const tone = isBad ? toneOf(instance.state) : "warn";
    const link = h("a", { class: "mono", href: `/console/instances/${encodeURIComponent(instance.id)}` }, instance.id);
    this.place.replaceChildren(
      h(
        "div",
        { class: `error-box failure ${tone === "warn" ? "is-notice" : ""}`, role: tone === "bad" ? "alert" : "status" },
        h(
          "p",
          { class: "row" },
          badge(tone, isBad ? stateWord(instance.state) : t("base.failure.notices")),
          this.namesInstance && link,
        ),
        isBad && saidNode("p", { class: "failure-cause" }, visibleText(instance.reason)),
        instance.notices.map((/** @type {string} */ one) => saidNode("p", {}, visibleText(one))),
        help,
        lines,
        isBad && this.ways(instance, deployment),
      ),
    );
    if (!isBad) return;
    if (deployment?.desired === "running") this.showHelp(help, deployment, key);
    if (instance.attempt > 0) this.showLines(lines, instance.id, key);
  }

  /** @param {Record<string, any>} instance @param {Record<string, any> | undefined} deployment */
  ways({ id, deployment: name, attempt }, deployment) {
    const settings =
      may("operate") &&
      deployment?.desired === "running" &&
      h(
        "a",
        { class: "button small", href: `/console/deployments/${encodeURIComponent(name)}?update=1` },
        icon("edit"),
        t("base.failure.change"),
      );
    const log =
      attempt > 0 &&
      h(
        "a",
        { class: "button small", href: `/console/instances/${encodeURIComponent(id)}?tab=logs` },
        icon("logs"),
        t("base.failure.log"),
      );
    return h(
      "p",
      { class: "row" },
      settings,
      log,
      h("span", { class: "quiet" }, t("base.failure.diagnose"), " ", h("code", {}, `trivet diagnose ${name}`)),
    );
  }

  /** @param {HTMLElement} place @param {Record<string, any>} deployment @param {string} key of what is shown then */
  async showHelp(place, { name, model, version, backend, device, settings }, key) {
    const plan = await change("POST", "/platform/v1/plan", {
      model: `${model}:${version}`,
      backend,
      device,
      settings,
    }).catch(() => null); // the reason stands there already
    if (key !== this.shown || !plan || plan.fits || !plan.changes.length) return;
    const apply = (/** @type {any} */ one) =>
      one.setting &&
      may("operate") &&
      h(
        "button",
        {
          type: "button",
          class: "small",
          onclick: (/** @type {any} */ event) => this.apply(event.currentTarget, name, one),
        },
        icon("check"),
        t("base.failure.apply"),
      );
    const row = (/** @type {any} */ one) =>
      h("li", { class: "row" }, apply(one), saidNode("span", { class: "grow" }, one.text));
    place.replaceChildren(
      h("h3", {}, t("base.failure.would_help")),
      h("ul", { class: "changes" }, plan.changes.slice(0, SHOWN_CHANGES).map(row)),
    );
  }

  /** @param {HTMLButtonElement} button @param {string} name @param {{setting: string, value: string}} one */
  async apply(button, name, { setting, value }) {
    button.disabled = true;
    try {
      await change("PATCH", `/platform/v1/deployments/${encodeURIComponent(name)}`, { settings: { [setting]: value } });
      toast(t("base.failure.applied", { name, setting: `${setting}=${value}` }));
    } catch (error) {
      toast(/** @type {Error} */ (error).message, { tone: "bad" });
      button.disabled = false;
    }
  }

  /** @param {HTMLElement} place @param {string} id @param {string} key of what is shown meanwhile */
  async showLines(place, id, key) {
    const text = await getText(`/platform/v1/logs/${encodeURIComponent(id)}?tail=${LAST_LINES}`).catch(() => ""); // it may be gone
    if (key === this.shown && text.trim())
      place.replaceChildren(
        h("h3", {}, t("base.failure.last_lines")),
        codeBlock(visibleText(withoutEscapes(text.trim()))),
      );
  }
}
