// What goes with a message: system prompt, sampling, the form of the answer, tools. Kept in this browser.

import { h } from "../../base/dom.js";
import { checkbox, field, input, select, textarea } from "../../base/form.js";
import { t } from "../../base/texts.js";

const KEY = "trivet-playground";
/** @type {[string, Record<string, any>][]} numbers of /v1/chat/completions */
const NUMBERS = [
  ["temperature", { min: 0, max: 2, step: 0.1 }],
  ["max_tokens", { min: 1, step: 1 }],
  ["top_p", { min: 0, max: 1, step: 0.05 }],
  ["top_k", { min: -1, step: 1 }],
  ["min_p", { min: 0, max: 1, step: 0.01 }],
  ["seed", { step: 1 }],
  ["presence_penalty", { min: -2, max: 2, step: 0.1 }],
  ["frequency_penalty", { min: -2, max: 2, step: 0.1 }],
  ["repetition_penalty", { min: 0.1, max: 2, step: 0.05 }],
];
const FIRST = 2; // of them are seen at once

export class Settings {
  /** @param {HTMLFormElement} form */
  constructor(form) {
    this.form = form;
    const numbers = NUMBERS.map(([name, limits]) =>
      field(t(`playground.${name}`), input(name, { type: "number", placeholder: t("playground.default"), ...limits })),
    );
    form.append(
      field(t("playground.system"), textarea("system", { rows: 3 })),
      h("div", { class: "form-row" }, numbers.slice(0, FIRST)),
      checkbox("logprobs", t("playground.logprobs"), t("playground.logprobs_help")),
      field(
        t("playground.thinking"),
        select("thinking", [
          ["", t("playground.default")],
          ["on", t("playground.thinking_on")],
          ["off", t("playground.thinking_off")],
        ]),
      ),
      h(
        "details",
        {},
        h("summary", {}, t("playground.more")),
        h(
          "div",
          { class: "form" },
          h("div", { class: "form-row" }, numbers.slice(FIRST)),
          field(t("playground.stop_strings"), textarea("stop", { rows: 2 }), t("playground.stop_help")),
          field(
            t("playground.format"),
            select("format", [
              ["", t("playground.format_text")],
              ["json_object", t("playground.format_json")],
              ["json_schema", t("playground.format_schema")],
            ]),
          ),
          field(
            t("playground.schema"),
            textarea("schema", { rows: 4, class: "mono", placeholder: '{"type": "object", "properties": {…}}' }),
            t("playground.schema_help"),
          ),
          field(
            t("playground.tools"),
            textarea("tools", {
              rows: 4,
              class: "mono",
              placeholder: '[{"type": "function", "function": {"name": …}}]',
            }),
            t("playground.tools_help"),
          ),
        ),
      ),
    );
    this.restore();
    form.addEventListener("input", () => this.keep());
    form.addEventListener("submit", (event) => event.preventDefault());
  }

  /** @param {string} name @returns {any} */
  control(name) {
    return this.form.elements.namedItem(name);
  }

  /** Why it cannot be sent; null: it can. @returns {string | null} */
  problem() {
    for (const name of ["schema", "tools"]) {
      const isAsked = name === "tools" || this.control("format").value === "json_schema";
      if (isAsked && this.control(name).value.trim() && parsed(this.control(name).value) === undefined)
        return t("playground.not_json", { name: t(`playground.${name}`) });
    }
    if (!this.form.checkValidity()) {
      this.form.reportValidity();
      return t("playground.out_of_range");
    }
    return null;
  }

  /** @returns {{system: string, fields: Record<string, any>}} fields of the request that are set */
  read() {
    /** @type {Record<string, any>} */
    const fields = {};
    for (const [name] of NUMBERS) if (this.control(name).value !== "") fields[name] = Number(this.control(name).value);
    const stop = this.control("stop").value.split("\n").filter(Boolean);
    if (stop.length) fields.stop = stop;
    if (this.control("logprobs").checked) Object.assign(fields, { logprobs: true, top_logprobs: 5 });
    const thinking = this.control("thinking").value;
    if (thinking) fields.chat_template_kwargs = { enable_thinking: thinking === "on" };
    const format = this.control("format").value;
    const schema = parsed(this.control("schema").value);
    if (format === "json_object") fields.response_format = { type: format };
    if (format === "json_schema" && schema)
      fields.response_format = { type: format, json_schema: { name: "answer", schema } };
    const tools = parsed(this.control("tools").value);
    if (Array.isArray(tools)) fields.tools = tools;
    return { system: this.control("system").value.trim(), fields };
  }

  keep() {
    const values = Object.fromEntries(
      [...this.form.elements].map((/** @type {any} */ one) => [
        one.name,
        one.type === "checkbox" ? one.checked : one.value,
      ]),
    );
    try {
      localStorage.setItem(KEY, JSON.stringify(values));
    } catch {
      // There is no room; they hold while this page is open.
    }
  }

  restore() {
    try {
      for (const [name, value] of Object.entries(JSON.parse(localStorage.getItem(KEY) ?? "{}"))) {
        const control = this.control(name);
        if (control?.type === "checkbox") control.checked = value;
        else if (control) control.value = value;
      }
    } catch {
      localStorage.removeItem(KEY);
    }
  }
}

/** @param {string} text @returns {any} undefined where it is no JSON */
function parsed(text) {
  try {
    return text.trim() ? JSON.parse(text) : undefined;
  } catch {
    return undefined;
  }
}
