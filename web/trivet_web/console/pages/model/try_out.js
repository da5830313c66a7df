// The chat template on sample messages, and a text as the tokens that it becomes: by a deployment of the model.

import { change } from "../../base/api.js";
import { codeBlock } from "../../base/copy.js";
import { h } from "../../base/dom.js";
import { field, textarea } from "../../base/form.js";
import { live } from "../../base/live.js";
import { may } from "../../base/page_data.js";
import { visibleText } from "../../base/plain_text.js";
import { errorBox } from "../../base/states.js";
import { t, tn } from "../../base/texts.js";

const PAUSE_MS = 400;
const COLOURS = 6;
const SAMPLE = [
  { role: "system", content: "You are a helpful assistant." },
  { role: "user", content: "What is 2 + 2?" },
  { role: "assistant", content: "4" },
  { role: "user", content: "And 3 + 3?" },
];

export class TryOut {
  /** @param {HTMLElement} panel @param {string} model */
  constructor(panel, model) {
    this.panel = panel;
    this.model = model;
    /** @type {string | null} */
    this.deployment = null;
    this.details = null;
    live.objects("deployments", (all) => {
      const found = [...all.values()].find((one) => one.model === model && one.desired === "running")?.name ?? null;
      if (found === this.deployment) return;
      this.deployment = found;
      this.draw();
    });
  }

  /** @param {any} details */
  show(details) {
    this.details = details;
    this.draw();
  }

  draw() {
    if (!this.details) return;
    const template = /** @type {any} */ (this.details).chat_template;
    const source = h("details", {}, h("summary", {}, t("model.template_source")), codeBlock(template ?? ""));
    const shown = template ? source : h("p", { class: "quiet" }, t("model.no_template"));
    if (!this.deployment || !may("infer")) {
      this.panel.replaceChildren(
        h("section", { class: "card stack" }, h("p", { class: "quiet" }, t("model.needs_deployment")), shown),
      );
      return;
    }
    this.panel.replaceChildren(
      h(
        "div",
        { class: "columns" },
        template ? this.ofTemplate(shown) : h("section", { class: "card" }, shown),
        this.ofTokenizer(),
      ),
    );
  }

  /** @param {Node} source */
  ofTemplate(source) {
    const area = textarea("messages", { rows: 12, class: "mono" });
    area.value = JSON.stringify(SAMPLE, null, 2);
    const result = h("div");
    const run = soon(async () => {
      const { tokens } = await change("POST", "/tokenize", {
        model: this.deployment,
        messages: JSON.parse(area.value),
      });
      const { prompt } = await change("POST", "/detokenize", {
        model: this.deployment,
        tokens,
        skip_special_tokens: false,
      });
      result.replaceChildren(
        h("p", { class: "quiet" }, tn("model.num_tokens", tokens.length)),
        codeBlock(visibleText(prompt)),
      );
    }, result);
    area.addEventListener("input", run);
    run();
    return h(
      "section",
      { class: "card stack" },
      h("h2", {}, t("model.template")),
      field(t("model.messages"), area),
      result,
      source,
    );
  }

  ofTokenizer() {
    const area = textarea("text", { rows: 4 });
    area.value = "Trivet serves large language models. 你好，世界!";
    const result = h("div");
    const run = soon(async () => {
      const found = await change("POST", "/tokenize", {
        model: this.deployment,
        prompt: area.value,
        add_special_tokens: false,
        return_token_strs: true,
      });
      result.replaceChildren(
        h("p", { class: "quiet" }, tn("model.num_tokens", found.tokens.length)),
        h(
          "p",
          { class: "token-line" },
          found.tokens.map((/** @type {number} */ id, /** @type {number} */ index) =>
            tokenNode(found.token_strs?.[index] ?? "", id, index),
          ),
        ),
      );
    }, result);
    area.addEventListener("input", run);
    run();
    return h(
      "section",
      { class: "card stack" },
      h("h2", {}, t("model.tokenizer")),
      field(t("model.text"), area),
      result,
    );
  }
}

/** @param {string} text @param {number} id @param {number} index */
const tokenNode = (text, id, index) =>
  h("span", { class: `token-piece t${index % COLOURS}`, title: String(id) }, visibleText(text.replaceAll("\n", "↵")));

/** After a pause in typing; what fails is said in the result's place. @param {() => Promise<void>} work @param {HTMLElement} result */
function soon(work, result) {
  /** @type {ReturnType<typeof setTimeout> | undefined} */
  let timer;
  return () => {
    clearTimeout(timer);
    timer = setTimeout(
      () =>
        work().catch((error) =>
          result.replaceChildren(
            error instanceof SyntaxError ? h("p", { class: "error" }, t("model.not_json")) : errorBox(error),
          ),
        ),
      PAUSE_MS,
    );
  };
}
