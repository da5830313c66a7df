// The fields of a launch. An empty field leaves its setting to the planner.

import { h } from "../../base/dom.js";
import { filterOf } from "../../base/filters.js";
import { field, input, select, setChoices, textarea } from "../../base/form.js";
import { t } from "../../base/texts.js";
import { adaptersOf, linesOf } from "./adapters.js";

/** @type {[string, Record<string, any>][]} engine settings that have a field of their own */
const NUMBERS = [
  ["max_model_len", { type: "number", min: 1, step: 1 }],
  ["max_num_seqs", { type: "number", min: 1, step: 1, placeholder: "64" }],
  ["gpu_memory_utilization", { type: "number", min: 0.01, max: 1, step: 0.01 }],
  ["tensor_parallel_size", { type: "number", min: 1, step: 1, placeholder: "1" }],
];
/** @type {[string, string[]][]} */
const CHOICES = [
  ["dtype", ["auto", "float32", "bfloat16", "float16"]],
  ["kv_cache_dtype", ["auto", "bfloat16", "float16", "fp8", "int8"]],
  ["enable_prefix_caching", ["true", "false"]],
];
const DEFAULTS = new Set(["auto", "true"]);

export class LaunchForm {
  /** @param {HTMLFormElement} node */
  constructor(node) {
    this.node = node;
    /** @type {Record<string, any>[]} */
    this.devices = [];
    /** @type {string[]} */
    this.deployments = [];
    /** @type {Record<string, any> | null} the deployment that is launched once more */
    this.origin = null;
    this.models = h("datalist", { id: "launch-models" });
    const number = (/** @type {string} */ name) =>
      field(
        t(`launch.${name}`),
        input(name, NUMBERS.find(([one]) => one === name)?.[1] ?? {}),
        t(`launch.${name}_help`),
      );
    const choice = (/** @type {string} */ name) =>
      field(
        t(`launch.${name}`),
        select(
          name,
          (CHOICES.find(([one]) => one === name)?.[1] ?? []).map((value) => [value, value]),
        ),
        t(`launch.${name}_help`),
      );
    node.append(
      this.group("what", [
        field(
          t("launch.model"),
          input("model", {
            list: "launch-models",
            required: true,
            value: filterOf("model"),
            placeholder: t("launch.model_placeholder"),
          }),
          t("launch.model_help"),
        ),
        this.models,
        h(
          "div",
          { class: "form-row" },
          field(t("launch.name"), input("name", { maxlength: 64, placeholder: t("launch.name_placeholder") })),
          field(t("launch.replicas"), input("replicas", { type: "number", min: 1, max: 64, value: 1, required: true })),
        ),
      ]),
      this.group("where", [
        h(
          "div",
          { class: "form-row" },
          field(t("launch.backend"), select("backend", [["auto", t("launch.auto")]])),
          field(t("launch.device"), select("device", [["", t("launch.any_device")]])),
          number("tensor_parallel_size"),
        ),
      ]),
      this.group("memory", [
        h("div", { class: "form-row" }, number("max_model_len"), number("max_num_seqs")),
        h("div", { class: "form-row" }, number("gpu_memory_utilization"), choice("kv_cache_dtype"), choice("dtype")),
      ]),
      h(
        "details",
        {},
        h("summary", {}, t("launch.more")),
        h(
          "div",
          { class: "form" },
          h(
            "div",
            { class: "form-row" },
            choice("enable_prefix_caching"),
            field(
              t("launch.idle_timeout_s"),
              input("idle_timeout_s", { type: "number", min: 1, step: 1 }),
              t("launch.idle_timeout_s_help"),
            ),
          ),
          h(
            "div",
            { class: "form-row" },
            field(
              t("launch.priority"),
              input("priority", { type: "number", step: 1, value: 0 }),
              t("launch.priority_help"),
            ),
            field(t("launch.fallback"), select("fallback", [["", t("launch.no_fallback")]]), t("launch.fallback_help")),
          ),
          field(
            t("launch.adapters"),
            textarea("adapters", { rows: 2, class: "mono", placeholder: "sql=/models/adapters/sql" }),
            t("launch.adapters_help"),
          ),
          field(
            t("launch.settings"),
            textarea("settings", { rows: 3, class: "mono", placeholder: "swap_space=4\noptions.graphs=off" }),
            t("launch.settings_help"),
          ),
        ),
      ),
    );
  }

  /** @param {string} name @param {Node[]} fields */
  group(name, fields) {
    return h("fieldset", { class: "form" }, h("legend", {}, t(`launch.group.${name}`)), fields);
  }

  /** @param {string} name @returns {any} */
  control(name) {
    return this.node.elements.namedItem(name);
  }

  /** @param {any[]} models of the registry */
  showModels(models) {
    const names = models.flatMap((one) => [
      one.name,
      ...Object.keys(one.aliases).map((alias) => `${one.name}:${alias}`),
    ]);
    this.models.replaceChildren(...names.map((value) => h("option", { value })));
    if (!this.control("model").value && names.length) this.control("model").value = names[0];
  }

  /** @param {Record<string, any>[]} devices */
  showDevices(devices) {
    this.devices = devices;
    const usable = devices.filter((one) => !one.unusable_because && one.kind !== "null");
    const kinds = [...new Set(usable.map((one) => one.kind))];
    this.offer("backend", [
      ["auto", t("launch.auto")],
      ...kinds.map((kind) => /** @type {[string, string]} */ ([kind, kind])),
    ]);
    this.offer("device", [
      ["", t("launch.any_device")],
      ...usable.map((one) => /** @type {[string, string]} */ ([one.uid, `${one.kind}:${one.index} ${one.name}`])),
    ]);
  }

  /** @param {string[]} names */
  showDeployments(names) {
    this.deployments = names;
    this.offer("fallback", [
      ["", t("launch.no_fallback")],
      ...names.map((name) => /** @type {[string, string]} */ ([name, name])),
    ]);
  }

  /** What a proposal of the planner changes. @param {string} setting @param {string} value */
  set(setting, value) {
    const control = this.control(setting);
    if (setting === "adapters") {
      control.value = linesOf(value);
      return;
    }
    const isOffered =
      !control?.options || [...control.options].some((/** @type {HTMLOptionElement} */ one) => one.value === value);
    if (control && isOffered && setting !== "settings") control.value = value;
    else this.control("settings").value = `${this.control("settings").value.trim()}\n${setting}=${value}`.trim();
  }

  /** Choices of a field, and what a deployment has there that is offered no more. @param {string} name @param {[string, string][]} choices */
  offer(name, choices) {
    const kept = this.origin?.[name];
    const isMissing = kept && !choices.some(([value]) => value === kept);
    setChoices(this.control(name), isMissing ? [...choices, [kept, kept]] : choices);
  }

  /** With the values of a deployment, stopped or not. @param {Record<string, any>} one */
  fill(one) {
    this.origin = one;
    this.showDevices(this.devices);
    this.showDeployments(this.deployments);
    for (const name of ["name", "replicas", "backend", "device", "priority", "fallback"])
      this.control(name).value = one[name] ?? "";
    this.control("model").value = `${one.model}:${one.alias ?? one.version}`;
    for (const [setting, value] of Object.entries(one.settings)) this.set(setting, value);
  }

  /** Of POST /platform/v1/deployments. @returns {Record<string, any>} */
  body() {
    /** @type {Record<string, string>} */
    const settings = {};
    for (const [name] of NUMBERS) if (this.control(name).value !== "") settings[name] = this.control(name).value;
    for (const [name] of CHOICES)
      if (!DEFAULTS.has(this.control(name).value)) settings[name] = this.control(name).value;
    if (this.control("idle_timeout_s").value) settings.idle_timeout_s = this.control("idle_timeout_s").value;
    if (this.control("adapters").value.trim()) settings.adapters = adaptersOf(this.control("adapters").value);
    for (const line of this.control("settings").value.split("\n")) {
      const [key, ...value] = line.split("=");
      if (key.trim()) settings[key.trim()] = value.join("=").trim();
    }
    /** @type {Record<string, any>} */
    const body = {
      model: this.control("model").value.trim(),
      backend: this.control("backend").value,
      replicas: Number(this.control("replicas").value),
      settings,
    };
    if (this.control("name").value.trim()) body.name = this.control("name").value.trim();
    if (this.control("device").value) body.device = this.control("device").value;
    if (Number(this.control("priority").value)) body.priority = Number(this.control("priority").value);
    if (this.control("fallback").value) body.fallback = this.control("fallback").value;
    return body;
  }
}
