// The chat template on sample messages, and a text as the tokens that it becomes: by a deployment of the model.

import { change } from "../../base/api.js";
import { codeBlock } from "../../base/copy.js";
import { h } from "../../base/dom.js";
import { field, textarea } from "../../base/form.js";
import { live } from "../../base/live.js";
import { may } from "../../base/page_data.js";
import { visibleText } from "../../base/plain_text.js";
import { soon } from "../../base/soon.js";
import { errorBox } from "../../base/states.js";
import { t, tn } from "../../base/texts.js";

const PAUSE_MS = 400;
const COLOURS = 6;
const BROKEN = "\ufffd"; // in the place of a part of a character
const MOST_JOINED = 32; // runs of such parts that the server is asked for
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
    /** @type {Record<string, any> | null} */
    this.details = null;
    live.objects("deployments", () => {
      const found = this.running();
      if (found === this.deployment) return;
      this.deployment = found;
      this.draw();
    });
  }

  /** @param {any} details */
  show(details) {
    this.details = details;
    this.deployment = this.running();
    this.draw();
  }

  /** A deployment of this very version: another one may have another template. @returns {string | null} */
  running() {
    const all = [...(live.known.get("deployments")?.values() ?? [])];
    return (
      all.find((one) => one.model === this.model && one.version === this.details?.version && one.desired === "running")
        ?.name ?? null
    );
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
    const area = textarea("messages", { rows: 12, class: "mono", required: true });
    area.value = JSON.stringify(SAMPLE, null, 2);
    const result = h("div");
    const run = whenQuiet(async () => {
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

  /** Tokens as they read; such as hold a part of a character stand together. @param {{tokens: number[], token_strs: string[]}} found */
  async pieces({ tokens, token_strs: texts }) {
    /** @type {{ids: number[], text: string}[]} */
    const found = [];
    tokens.forEach((id, index) => {
      const last = found[found.length - 1];
      if (texts[index].includes(BROKEN) && last?.text.includes(BROKEN)) last.ids.push(id);
      else found.push({ ids: [id], text: texts[index] });
    });
    for (const one of found.filter((piece) => piece.ids.length > 1).slice(0, MOST_JOINED)) {
      one.text = (await change("POST", "/detokenize", { model: this.deployment, tokens: one.ids })).prompt;
    }
    return found;
  }

  ofTokenizer() {
    const area = textarea("text", { rows: 4, required: true });
    area.value = "Trivet serves large language models. 你好，世界!";
    const result = h("div");
    const run = whenQuiet(async () => {
      const found = await change("POST", "/tokenize", {
        model: this.deployment,
        prompt: area.value,
        add_special_tokens: false,
        return_token_strs: true,
      });
      result.replaceChildren(
        h("p", { class: "quiet" }, tn("model.num_tokens", found.tokens.length)),
        h("p", { class: "token-line" }, (await this.pieces(found)).map(tokenNode)),
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

/** @param {{ids: number[], text: string}} piece @param {number} index */
const tokenNode = ({ ids, text }, index) =>
  h(
    "span",
    { class: `token-piece t${index % COLOURS}`, title: ids.join(" ") },
    visibleText(text.replaceAll("\n", "↵")),
  );

/** After a pause in typing; what fails is said in the result's place. @param {() => Promise<void>} work @param {HTMLElement} result */
const whenQuiet = (work, result) =>
  soon(
    () =>
      work().catch((error) =>
        result.replaceChildren(
          error instanceof SyntaxError ? h("p", { class: "error" }, t("model.not_json")) : errorBox(error),
        ),
      ),
    PAUSE_MS,
  );
