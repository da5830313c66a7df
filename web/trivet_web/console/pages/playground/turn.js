// One message of a conversation that has been written, with what can be done with it.

import { copyButton } from "../../base/copy.js";
import { h, icon } from "../../base/dom.js";
import { t } from "../../base/texts.js";
import { visibleText } from "../../base/plain_text.js";
import { numBranches } from "./branches.js";
import { renderMarkdown } from "./markdown.js";
import { numbersLine } from "./numbers.js";
import { tokenView } from "./token_view.js";

export class Turn {
  /** @param {import("./column.js").Column} column @param {import("./column.js").Message} message @param {number} index */
  constructor(column, message, index) {
    this.column = column;
    this.message = message;
    this.index = index;
    this.node = h("article", { class: `turn ${message.role}`, "aria-label": t(`playground.role.${message.role}`) });
    this.show();
  }

  show() {
    this.node.replaceChildren(...(this.message.role === "user" ? this.ofUser() : this.ofModel()));
  }

  ofUser() {
    return [
      h("p", { class: "said" }, visibleText(this.message.content)),
      this.tools([this.button("edit", t("playground.edit"), () => this.edit())]),
    ];
  }

  ofModel() {
    const { content, reasoning, numbers, tool_calls: calls } = this.message;
    const tokens = numbers?.tokens ?? [];
    const answer = renderMarkdown(content);
    const shown = h("div", {}, answer);
    const tokenButton =
      tokens.length > 0 &&
      h("button", { type: "button", class: "ghost small", "aria-pressed": "false" }, t("playground.tokens"));
    if (tokenButton) {
      tokenButton.addEventListener("click", () => {
        const isOn = tokenButton.getAttribute("aria-pressed") !== "true";
        tokenButton.setAttribute("aria-pressed", String(isOn));
        shown.replaceChildren(isOn ? tokenView(tokens) : answer);
      });
    }
    return [
      reasoning ? reasoningNode(reasoning) : null,
      shown,
      ...(calls ?? []).map(toolCallNode),
      numbers ? numbersLine(numbers) : null,
      this.tools([
        copyButton(() => content),
        this.button("again", t("playground.again"), () => this.column.again(this.index)),
        tokenButton,
      ]),
    ].filter((one) => one !== null);
  }

  /** @param {(Node | false | null)[]} more */
  tools(more) {
    return h(
      "div",
      { class: "turn-tools" },
      this.branches(),
      more,
      this.button("delete", t("playground.delete"), () => this.column.delete(this.index)),
    );
  }

  /** Which of those in this place it is, and the way to the others. */
  branches() {
    const count = numBranches(this.message);
    if (count === 1) return null;
    const place = this.message.place ?? 0;
    const step = (/** @type {string} */ sign, /** @type {string} */ label, /** @type {number} */ to) =>
      h(
        "button",
        {
          type: "button",
          class: "ghost only-icon",
          "aria-label": label,
          disabled: to < 0 || to >= count,
          onclick: () => this.column.turnTo(this.index, to),
        },
        sign,
      );
    return h(
      "span",
      { class: "branches" },
      step("‹", t("playground.previous"), place - 1),
      h("span", {}, `${place + 1} / ${count}`),
      step("›", t("playground.next"), place + 1),
    );
  }

  /** @param {string} name @param {string} label @param {() => void} onclick */
  button(name, label, onclick) {
    return h(
      "button",
      { type: "button", class: "ghost only-icon", title: label, "aria-label": label, onclick },
      icon(name),
    );
  }

  edit() {
    const area = h("textarea", { rows: 3, "aria-label": t("playground.edit") });
    area.value = this.message.content;
    const send = h(
      "button",
      { type: "button", class: "primary small", onclick: () => this.column.edit(this.index, area.value.trim()) },
      t("playground.send_again"),
    );
    const cancel = h("button", { type: "button", class: "small", onclick: () => this.show() }, t("base.cancel"));
    this.node.replaceChildren(area, h("div", { class: "row end" }, cancel, send));
    area.focus();
  }
}

/** @param {string} text */
export const reasoningNode = (text) =>
  h(
    "details",
    { class: "reasoning" },
    h("summary", {}, t("playground.reasoning")),
    h("p", { class: "said" }, visibleText(text)),
  );

/** @param {any} call */
export const toolCallNode = (call) =>
  h(
    "div",
    { class: "tool-call" },
    h("span", { class: "tag" }, t("playground.tool_call")),
    " ",
    h("code", {}, visibleText(`${call.function.name}(${call.function.arguments})`)),
  );
