// The launch dialog, with the memory plan that the server makes for what is filled in.

import { request } from "./api.js";
import { byId, h, setText } from "./dom.js";
import { bytes, count } from "./format.js";
import { memoryBar } from "./memory.js";

const ROOT = "/platform/v1";
const PAUSE_MS = 350; // after the last key, before a plan is asked for

export class Launch {
  /** @param {() => void} onLaunched */
  constructor(onLaunched) {
    this.onLaunched = onLaunched;
    this.dialog = byId("launch");
    this.form = byId("launch-form");
    this.error = byId("launch-error");
    this.plan = byId("plan");
    this.devices = [];
    byId("launch-cancel").addEventListener("click", () => this.dialog.close());
    this.form.addEventListener("submit", (event) => this.submit(event));
    this.form.addEventListener("input", () => this.planSoon());
  }

  open() {
    this.error.hidden = true;
    this.dialog.showModal();
    byId("launch-model").focus();
    this.planSoon();
  }

  /** @param {import("./poller.js").State} state */
  show({ models, devices }) {
    this.devices = devices;
    const names = models.map((model) => model.name);
    options(byId("launch-models"), names, (name) => h("option", { value: name }));
    const field = byId("launch-model");
    if (!field.value && !this.dialog.open && names.length) field.value = names[0];
    const usable = devices.filter((device) => !device.unusable_because);
    const kinds = ["auto", ...new Set(usable.map((device) => device.kind))];
    options(byId("launch-backend"), kinds, (kind) => h("option", { value: kind }, kind));
    options(byId("launch-device"), ["", ...usable.map((device) => device.uid)], (uid) =>
      h("option", { value: uid }, uid ? label(usable.find((device) => device.uid === uid)) : "any"),
    );
  }

  body() {
    const settings = {};
    const put = (key, value) => {
      if (value.trim()) settings[key] = value.trim();
    };
    put("max_model_len", byId("launch-max-model-len").value);
    put("max_num_seqs", byId("launch-max-num-seqs").value);
    for (const line of byId("launch-settings").value.split("\n")) {
      const [key, ...value] = line.split("=");
      if (key.trim()) settings[key.trim()] = value.join("=").trim();
    }
    const body = { model: byId("launch-model").value.trim(), backend: byId("launch-backend").value, settings };
    if (byId("launch-device").value) body.device = byId("launch-device").value;
    return body;
  }

  planSoon() {
    clearTimeout(this.timer);
    this.timer = setTimeout(() => this.showPlan(), PAUSE_MS);
  }

  async showPlan() {
    this.asking?.abort();
    this.asking = new AbortController();
    const body = this.body();
    if (!body.model) return this.say("Choose a model to see what it needs.");
    try {
      const plan = await request("POST", `${ROOT}/plan`, body, this.asking.signal);
      this.plan.replaceChildren(...(plan.fits ? this.fits(plan) : [h("p", { class: "error" }, plan.reason)]));
    } catch (error) {
      if (error.name !== "AbortError") this.say(error.message);
    }
  }

  say(text) {
    this.plan.replaceChildren(h("p", { class: "quiet" }, text));
  }

  fits(plan) {
    const device = this.devices.find((one) => plan.device?.includes(one.uid) && one.kind === plan.backend);
    const needed = plan.parts.reduce((sum, part) => sum + part.size_bytes, 0);
    const tokens = Math.min(...plan.num_blocks.map((blocks) => (blocks - 1) * plan.block_size));
    const sequences = Math.floor(tokens / plan.max_model_len);
    return [
      h("p", { class: "fit" }, h("span", { class: "pill ok" }, "Fits"), ` ${plan.backend} · ${plan.device}`),
      memoryBar(plan.parts, device?.total_bytes ?? 0),
      facts([
        ["Memory", device ? `${bytes(needed)} of ${bytes(device.total_bytes)}` : bytes(needed)],
        ["Context", `${count(plan.max_model_len)} tokens`],
        ["KV cache", `${count(tokens)} tokens in blocks of ${plan.block_size}`],
        ["Room for", `${count(sequences)} ${sequences === 1 ? "sequence" : "sequences"} of full length`],
      ]),
    ];
  }

  async submit(event) {
    event.preventDefault();
    const button = byId("launch-submit");
    const body = { ...this.body(), replicas: Number(byId("launch-replicas").value) };
    if (byId("launch-name").value.trim()) body.name = byId("launch-name").value.trim();
    button.disabled = true;
    try {
      await request("POST", `${ROOT}/deployments`, body);
      this.dialog.close();
      byId("launch-name").value = "";
      this.onLaunched();
    } catch (error) {
      setText(this.error, error.message);
      this.error.hidden = false;
    } finally {
      button.disabled = false;
    }
  }
}

const label = (device) => `${device.kind}:${device.index} ${device.name}`;

const facts = (rows) =>
  h("dl", {}, ...rows.flatMap(([name, value]) => [h("dt", {}, name), h("dd", {}, value)]));

/** Replaces the options only when they differ, and keeps the choice. */
function options(select, values, make) {
  const key = values.join("\n");
  if (select.dataset.values === key) return;
  select.dataset.values = key;
  const chosen = select.value;
  select.replaceChildren(...values.map(make));
  if (values.includes(chosen)) select.value = chosen;
}
