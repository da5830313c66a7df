// A streaming chat with one of the ready models: Stop ends the generation in the engine, too.

import { ApiError, events } from "./api.js";
import { byId, h, setText } from "./dom.js";
import { count, rate } from "./format.js";

const MAX_NODE_LENGTH = 2000; // a browser shapes a text node anew when it grows

export class Chat {
  constructor() {
    this.messages = [];
    this.running = null; // an AbortController while an answer is streamed
    this.model = byId("chat-model");
    this.log = byId("chat-log");
    this.input = byId("chat-input");
    this.sendButton = byId("chat-send");
    this.stopButton = byId("chat-stop");
    this.welcome = h("p", { class: "empty" }, "Launch a model, then talk to it here.");
    this.log.append(this.welcome);
    byId("chat-form").addEventListener("submit", (event) => {
      event.preventDefault();
      this.send();
    });
    this.input.addEventListener("keydown", (event) => {
      if (event.key === "Enter" && !event.shiftKey && !event.isComposing) {
        event.preventDefault();
        this.send();
      }
    });
    byId("chat-title").closest("section").addEventListener("keydown", (event) => {
      if (event.key === "Escape") this.running?.abort();
    });
    this.stopButton.addEventListener("click", () => this.running?.abort());
    byId("chat-clear").addEventListener("click", () => this.clear());
    this.setRunning(null);
  }

  /** @param {import("./poller.js").State} state */
  show({ deployments }) {
    const ready = deployments
      .filter((one) => one.instances.some((instance) => instance.state === "ready"))
      .map((one) => one.name);
    const key = ready.join("\n");
    if (this.model.dataset.values !== key) {
      this.model.dataset.values = key;
      const chosen = this.model.value;
      this.model.replaceChildren(
        ...(ready.length ? ready : ["no model is ready"]).map((name) => h("option", { value: ready.length ? name : "" }, name)),
      );
      if (ready.includes(chosen)) this.model.value = chosen;
      setText(this.welcome, ready.length ? "Say something." : "Launch a model, then talk to it here.");
    }
    this.model.disabled = !ready.length;
    this.sendButton.disabled = !ready.length || this.running !== null;
  }

  clear() {
    this.running?.abort();
    this.messages = [];
    this.log.replaceChildren(this.welcome);
    setText(byId("chat-status"), "");
  }

  body() {
    const system = byId("chat-system").value.trim();
    const body = {
      model: this.model.value,
      messages: [...(system ? [{ role: "system", content: system }] : []), ...this.messages],
      stream: true,
      stream_options: { include_usage: true },
    };
    const temperature = byId("chat-temperature").value;
    const maxTokens = byId("chat-max-tokens").value;
    if (temperature !== "") body.temperature = Number(temperature);
    if (maxTokens !== "") body.max_tokens = Number(maxTokens);
    return body;
  }

  async send() {
    const content = this.input.value.trim();
    if (!content || this.running || !this.model.value) return;
    const messages = this.messages; // Clear begins another conversation; this answer is not part of it
    this.welcome.remove();
    this.input.value = "";
    messages.push({ role: "user", content });
    this.log.append(h("div", { class: "turn user" }, h("p", { class: "text" }, content)));
    const answer = new AnswerView(this.log);
    let outcome = "Answer complete.";
    this.setRunning(new AbortController());
    try {
      for await (const event of events("/v1/chat/completions", this.body(), this.running.signal)) answer.take(event);
      answer.finish();
    } catch (error) {
      outcome = error.name === "AbortError" ? "Stopped." : "";
      if (error instanceof ApiError) answer.fail(error.message);
      else if (error.name === "AbortError") answer.finish("stopped");
      else throw error;
    } finally {
      this.setRunning(null);
      if (answer.content) messages.push({ role: "assistant", content: answer.content });
      else messages.pop(); // templates refuse two turns of the user in a row
      setText(byId("chat-status"), outcome);
      this.input.focus();
    }
  }

  setRunning(controller) {
    this.running = controller;
    this.stopButton.hidden = controller === null;
    this.sendButton.hidden = controller !== null;
    setText(byId("chat-status"), controller ? "Generating. Esc stops." : "");
  }
}

/** One answer as it grows. */
class AnswerView {
  constructor(log) {
    this.log = log;
    this.content = "";
    this.pending = ""; // not shown yet
    this.frame = null;
    this.usage = null;
    this.chunks = 0;
    this.reason = "";
    this.begun = performance.now();
    this.first = null;
    this.last = null;
    this.node = document.createTextNode("");
    this.text = h("p", { class: "text waiting" }, this.node);
    this.line = h("p", { class: "numbers" });
    this.turn = h("div", { class: "turn assistant" }, this.text, this.line);
    log.append(this.turn);
    this.scroll(true);
  }

  take(event) {
    if (event.usage) this.usage = event.usage;
    const choice = event.choices[0];
    if (!choice) return;
    if (choice.finish_reason) this.reason = choice.finish_reason;
    if (!choice.delta.content) return;
    this.last = performance.now();
    this.first ??= this.last;
    this.chunks += 1;
    this.content += choice.delta.content;
    this.pending += choice.delta.content;
    this.frame ??= requestAnimationFrame(() => this.flush());
  }

  /** Once a frame: to lay out a long answer anew for each token would be slower than the model. */
  flush() {
    cancelAnimationFrame(this.frame);
    this.frame = null;
    if (!this.pending) return;
    const follows = this.isAtEnd();
    if (this.node.length > MAX_NODE_LENGTH) this.text.append((this.node = document.createTextNode("")));
    this.node.appendData(this.pending);
    this.pending = "";
    this.text.classList.remove("waiting");
    this.scroll(follows);
  }

  finish(reason = this.reason) {
    this.flush();
    this.text.classList.remove("waiting");
    const parts = [];
    if (this.first !== null) parts.push(`TTFT ${count(this.first - this.begun)} ms`);
    // A stopped answer brings no usage; a chunk is a token or a few.
    const tokens = this.usage?.completion_tokens ?? this.chunks;
    const seconds = (this.last - this.first) / 1000;
    if (tokens > 1 && seconds > 0) parts.push(`${rate((tokens - 1) / seconds)} tok/s`);
    if (tokens) parts.push(`${count(tokens)} tokens`);
    if (reason) parts.push(`finish: ${reason}`);
    setText(this.line, parts.join(" · "));
    this.scroll(true);
  }

  fail(message) {
    this.finish("error");
    this.turn.append(h("p", { class: "error", role: "alert" }, message));
    this.scroll(true);
  }

  isAtEnd() {
    return this.log.scrollHeight - this.log.scrollTop - this.log.clientHeight < 40;
  }

  scroll(follows) {
    if (follows) this.log.scrollTop = this.log.scrollHeight;
  }
}
