// An answer as it is streamed: its text as Markdown, what it thinks, how fast it comes.

import { h } from "../../base/dom.js";
import { errorBox } from "../../base/states.js";
import { visibleText } from "../../base/plain_text.js";
import { t } from "../../base/texts.js";
import { MarkdownView } from "./markdown.js";
import { numbersLine } from "./numbers.js";

const NEAR_END_PX = 60;
const PAINT_MS = 50; // at most 20 times a second: laying out each token anew would be slower than the model

export class Answer {
  /** @param {HTMLElement} log */
  constructor(log) {
    this.log = log;
    this.text = "";
    this.reasoning = "";
    /** @type {any[]} */
    this.toolCalls = [];
    /** @type {any[]} logprobs of tokens */
    this.tokens = [];
    this.usage = null;
    this.reason = "";
    this.chunks = 0;
    this.hasFailed = false;
    this.begunMs = performance.now();
    /** @type {number | null} */
    this.firstMs = null;
    this.lastMs = this.begunMs;
    /** @type {ReturnType<typeof setTimeout> | null} */
    this.timer = null;
    this.markdown = new MarkdownView();
    this.thought = h("p", { class: "said" });
    this.details = h(
      "details",
      { class: "reasoning", open: true, hidden: true },
      h("summary", {}, t("playground.reasoning")),
      this.thought,
    );
    this.node = h(
      "article",
      { class: "turn assistant is-writing", "aria-label": t("playground.role.assistant") },
      this.details,
      this.markdown.node,
    );
    log.append(this.node);
    this.follow(true);
  }

  /** @param {any} event a chunk of /v1/chat/completions */
  take(event) {
    if (event.usage) this.usage = event.usage;
    const choice = event.choices[0];
    if (!choice) return;
    if (choice.finish_reason) this.reason = choice.finish_reason;
    if (choice.logprobs?.content) this.tokens.push(...choice.logprobs.content);
    const { content, reasoning_content: thought, tool_calls: calls } = choice.delta;
    if (content || thought || calls) this.mark();
    this.text += content ?? "";
    this.reasoning += thought ?? "";
    for (const call of calls ?? []) this.takeCall(call);
    this.timer ??= setTimeout(() => this.paint(), PAINT_MS);
  }

  mark() {
    this.lastMs = performance.now();
    this.firstMs ??= this.lastMs;
    this.chunks += 1;
  }

  /** @param {any} delta */
  takeCall(delta) {
    const call = (this.toolCalls[delta.index] ??= {
      id: delta.id,
      type: "function",
      function: { name: "", arguments: "" },
    });
    call.function.name += delta.function.name ?? "";
    call.function.arguments += delta.function.arguments ?? "";
  }

  paint() {
    if (this.timer) clearTimeout(this.timer);
    this.timer = null;
    const follows = this.log.scrollHeight - this.log.scrollTop - this.log.clientHeight < NEAR_END_PX;
    this.details.hidden = !this.reasoning;
    if (this.reasoning) this.thought.textContent = visibleText(this.reasoning);
    if (this.text && this.details.open && !this.hasFolded) {
      this.hasFolded = true;
      this.details.open = false; // it has thought enough
    }
    this.markdown.show(this.text);
    this.follow(follows);
  }

  /** @param {string} [reason] in place of the model's */
  finish(reason) {
    this.paint();
    if (reason) this.reason = reason;
    this.node.classList.remove("is-writing");
    this.node.append(numbersLine(this.numbers()));
    this.follow(true);
  }

  /** @param {import("../../base/api.js").ApiError} error @param {() => void} retry */
  fail(error, retry) {
    this.hasFailed = true;
    this.finish(t("playground.failed"));
    this.node.append(errorBox(error, retry));
    this.follow(true);
  }

  numbers() {
    // A stopped answer brings no usage; a chunk is then a token or a few.
    const tokens = this.usage?.completion_tokens ?? this.chunks;
    const seconds = this.firstMs === null ? 0 : (this.lastMs - this.firstMs) / 1000;
    return {
      ttft_s: this.firstMs === null ? null : (this.firstMs - this.begunMs) / 1000,
      tokens_per_s: tokens > 1 && seconds > 0 ? (tokens - 1) / seconds : null,
      num_tokens: tokens,
      prompt_tokens: this.usage?.prompt_tokens ?? null,
      cached_tokens: this.usage?.prompt_tokens_details?.cached_tokens ?? null,
      finish_reason: this.reason,
      tokens: this.tokens,
    };
  }

  /** @returns {import("./column.js").Message} */
  message() {
    return {
      role: "assistant",
      content: this.text,
      reasoning: this.reasoning || undefined,
      tool_calls: this.toolCalls.length ? this.toolCalls : undefined,
      numbers: this.numbers(),
    };
  }

  /** @param {boolean} follows */
  follow(follows) {
    if (follows) this.log.scrollTop = this.log.scrollHeight;
  }
}
