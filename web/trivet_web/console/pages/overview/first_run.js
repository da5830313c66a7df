// On a new site, in the place of charts without data: a model, a launch, a chat, a key.

import { change, list } from "../../base/api.js";
import { badge } from "../../base/badge.js";
import { codeBlock } from "../../base/copy.js";
import { h, icon } from "../../base/dom.js";
import { bytes, count } from "../../base/format.js";
import { may } from "../../base/page_data.js";
import { saidNode } from "../../base/said.js";
import { errorBox } from "../../base/states.js";
import { t, tn } from "../../base/texts.js";

const DONE = "trivet-first-run-done";
const MOST_FOUND = 4;

export class FirstRun {
  /** @param {HTMLElement} card @param {HTMLElement} steps */
  constructor(card, steps) {
    this.card = card;
    this.steps = steps;
    /** @type {any[] | null} */
    this.models = null;
    /** @type {any[]} files on the server's host that could be registered */
    this.found = [];
    /** @type {any} the plan of the model that is offered */
    this.plan = null;
    /** @type {any[] | null} */
    this.keys = null;
    /** @type {Record<string, any>[] | null} */
    this.deployments = null;
    /** @type {Record<string, any>[]} */
    this.instances = [];
    /** @type {Record<string, any>[]} */
    this.devices = [];
    this.shown = "";
  }

  /** @param {string | null} user */
  async begin(user) {
    if (!may("operate") || localStorage.getItem(DONE)) return;
    const nothing = () => [];
    [this.models, this.found, this.keys] = await Promise.all([
      list("/platform/v1/models").catch(nothing),
      list("/platform/v1/model-files").catch(nothing),
      user ? list("/platform/v1/keys").catch(nothing) : [],
    ]);
    this.draw();
    this.askPlan();
  }

  /** Whether the model that is offered fits, and how much of it at once. */
  async askPlan() {
    const model = this.models?.[0]?.name;
    if (!model) return;
    this.plan = await change("POST", "/platform/v1/plan", { model }).catch(() => null); // a launch says what is wrong
    this.draw();
  }

  /** @param {Record<string, any>[]} deployments */
  showDeployments(deployments) {
    this.deployments = deployments;
    this.draw();
  }

  /** @param {Record<string, any>[]} instances */
  showInstances(instances) {
    this.instances = instances;
    this.draw();
  }

  /** @param {Record<string, any>[]} devices */
  showDevices(devices) {
    this.devices = devices;
    this.draw();
  }

  draw() {
    if (this.models === null || this.deployments === null || localStorage.getItem(DONE)) return;
    const isReady = this.instances.some((one) => one.state === "ready");
    const key = JSON.stringify([
      this.models.length,
      this.found.length,
      this.plan,
      this.deployments.length,
      isReady,
      this.keys?.length,
      this.instances.map((one) => one.state),
    ]);
    if (key === this.shown) return;
    this.shown = key;
    const steps = [this.model(), this.launch(isReady), this.chat(isReady), this.key(isReady)];
    this.card.hidden = false;
    this.steps.replaceChildren(...steps);
  }

  model() {
    const names = (this.models ?? []).map((one) => one.name);
    if (names.length)
      return step(true, t("overview.step.model"), h("p", { class: "quiet" }, names.slice(0, 5).join(", ")));
    const place = h("div");
    const found = this.found.slice(0, MOST_FOUND).map((one) => this.offer(one, place));
    return step(
      false,
      t("overview.step.model"),
      h("p", { class: "quiet" }, t(found.length ? "overview.step.model_found" : "overview.step.model_none")),
      found.length ? h("ul", { class: "found" }, found) : null,
      place,
      h("p", {}, h("a", { href: "/console/models?add=1" }, t("overview.step.model_add"))),
    );
  }

  /** @param {any} files @param {HTMLElement} place of what fails */
  offer(files, place) {
    const button = h(
      "button",
      {
        type: "button",
        class: "small",
        "aria-label": t("overview.step.register_it", { name: files.name }),
        onclick: () => this.register(files, button, place),
      },
      t("overview.step.register"),
    );
    return h(
      "li",
      { class: "row", title: files.path },
      h("span", { class: "grow" }, h("bdi", {}, files.name)),
      h("span", { class: "quiet nowrap" }, bytes(files.size_bytes)),
      button,
    );
  }

  /** @param {any} files @param {HTMLButtonElement} button @param {HTMLElement} place */
  async register({ path, name }, button, place) {
    button.disabled = true;
    button.textContent = t("overview.step.registering");
    try {
      await change("POST", "/platform/v1/models", { path, name });
      this.models = await list("/platform/v1/models");
      this.draw();
      await this.askPlan();
    } catch (error) {
      button.disabled = false;
      button.textContent = t("overview.step.register");
      place.replaceChildren(errorBox(/** @type {any} */ (error)));
    }
  }

  /** @param {boolean} isReady */
  launch(isReady) {
    const model = this.models?.[0];
    const under = this.instances.find((one) => !["ready", "stopped", "failed", "lost"].includes(one.state));
    if (isReady) return step(true, t("overview.step.launch"));
    if (under)
      return step(
        false,
        t("overview.step.launch"),
        h("p", { class: "quiet" }, t("overview.step.launching", { name: under.deployment })),
      );
    if (!model) return step(false, t("overview.step.launch"));
    const place = h("div");
    const version = model.versions[model.versions.length - 1];
    const button = h(
      "button",
      { type: "button", class: "primary", onclick: () => this.launchNow(model.name, button, place) },
      t("overview.step.launch_it", { name: model.name }),
    );
    return step(
      false,
      t("overview.step.launch"),
      h(
        "div",
        { class: "row" },
        button,
        h("span", { class: "quiet" }, bytes(version?.size_bytes)),
        h("a", { href: `/console/launch?model=${encodeURIComponent(model.name)}` }, t("overview.step.choose")),
      ),
      this.plan && this.fit(),
      place,
    );
  }

  fit() {
    const { fits, num_sequences: number, max_model_len: tokens, reason } = this.plan;
    return h(
      "p",
      { class: "row" },
      badge(fits ? "ok" : "bad", t(fits ? "overview.step.fits" : "overview.step.fits_not")),
      fits
        ? h("span", { class: "quiet grow" }, tn("overview.step.sequences", number, { tokens: count(tokens) }))
        : saidNode("span", { class: "quiet grow" }, reason),
    );
  }

  /** @param {string} name @param {HTMLButtonElement} button @param {HTMLElement} place */
  async launchNow(name, button, place) {
    button.disabled = true;
    try {
      await change("POST", "/platform/v1/deployments", { model: name, replicas: 1 });
      place.replaceChildren();
    } catch (error) {
      button.disabled = false;
      place.replaceChildren(errorBox(/** @type {any} */ (error)));
    }
  }

  /** @param {boolean} isReady */
  chat(isReady) {
    const link = h("a", { class: "button primary", href: "/console/playground" }, t("overview.step.open_playground"));
    return step(false, t("overview.step.chat"), isReady ? h("div", { class: "row" }, link) : null);
  }

  /** @param {boolean} isReady */
  key(isReady) {
    const name = this.instances.find((one) => one.state === "ready")?.deployment ?? "MODEL";
    const curl = `curl ${location.origin}/v1/chat/completions \\\n  -H "Authorization: Bearer $KEY" -H "Content-Type: application/json" \\\n  -d '${JSON.stringify({ model: name, messages: [{ role: "user", content: "Hello" }] })}'`;
    const done = h(
      "button",
      { type: "button", class: "ghost small", onclick: () => this.finish() },
      icon("check"),
      t("overview.step.hide"),
    );
    return step(
      (this.keys?.length ?? 0) > 0,
      t("overview.step.key"),
      h("p", {}, h("a", { href: "/console/keys" }, t("overview.step.make_key"))),
      isReady ? codeBlock(curl) : null,
      h("p", { class: "row end" }, done),
    );
  }

  finish() {
    localStorage.setItem(DONE, "1");
    this.card.hidden = true;
  }
}

/** @param {boolean} isDone @param {string} title @param {...(Node | null)} body */
const step = (isDone, title, ...body) =>
  h(
    "li",
    { class: isDone ? "is-done" : null },
    h(
      "h3",
      {},
      title,
      isDone &&
        h(
          "span",
          { class: "step-done" },
          icon("check"),
          h("span", { class: "visually-hidden" }, t("overview.step.done")),
        ),
    ),
    body,
  );
