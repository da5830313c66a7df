// An answer token by token: its background tells how sure the model was, a hover what else it thought of.

import { h } from "../../base/dom.js";
import { visibleText } from "../../base/plain_text.js";
import { t } from "../../base/texts.js";

/** @typedef {{token: string, logprob: number, top_logprobs: {token: string, logprob: number}[]}} Token */

/** @param {Token[]} tokens */
export function tokenView(tokens) {
  const detail = h("div", { class: "token-detail quiet", "aria-live": "polite" }, t("playground.token_hint"));
  const list = h(
    "div",
    { class: "tokens", role: "group", "aria-label": t("playground.tokens") },
    tokens.map((one) => tokenNode(one, detail)),
  );
  return h("div", { class: "stack" }, list, detail);
}

/** @param {Token} one @param {HTMLElement} detail */
function tokenNode(one, detail) {
  const share = Math.exp(one.logprob);
  const node = h("button", { type: "button", class: "token" }, shown(one.token));
  node.style.background = `color-mix(in srgb, var(--accent) ${Math.round(45 * (1 - share))}%, transparent)`;
  const show = () =>
    detail.replaceChildren(
      h(
        "table",
        { class: "token-table" },
        h(
          "tbody",
          {},
          withItself(one).map((other) =>
            h(
              "tr",
              { class: other.token === one.token ? "is-drawn" : null },
              h("td", {}, h("code", {}, shown(other.token))),
              h("td", { class: "number" }, `${(100 * Math.exp(other.logprob)).toFixed(1)} %`),
              h("td", {}, barOf(Math.exp(other.logprob))),
            ),
          ),
        ),
      ),
    );
  node.addEventListener("pointerenter", show);
  node.addEventListener("focus", show);
  return one.token.includes("\n") ? h("span", {}, node, h("br")) : node;
}

/** The likeliest ones, and the one that was drawn. @param {Token} one */
const withItself = (one) =>
  one.top_logprobs.some((other) => other.token === one.token) ? one.top_logprobs : [...one.top_logprobs, one];

/** @param {number} share */
function barOf(share) {
  const bar = h("i", { class: "token-bar" });
  bar.style.width = `${Math.max(1, 100 * share)}px`;
  return bar;
}

/** Line breaks and spaces are seen. @param {string} token */
const shown = (token) => visibleText(token.replaceAll("\n", "↵")) || "∅";
