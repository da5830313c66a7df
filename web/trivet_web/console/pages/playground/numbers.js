// The line below an answer: how long the first token took, how fast the rest came, why it ended.

import { h } from "../../base/dom.js";
import { count, duration, rate } from "../../base/format.js";
import { t, tn, textOr } from "../../base/texts.js";

/** @param {Record<string, any>} numbers of Answer.numbers */
export function numbersLine(numbers) {
  const parts = [
    numbers.ttft_s !== null && t("playground.ttft", { value: duration(numbers.ttft_s) }),
    numbers.tokens_per_s !== null && t("playground.speed", { value: rate(numbers.tokens_per_s) }),
    numbers.num_tokens > 0 && tn("playground.num_tokens", numbers.num_tokens),
    numbers.prompt_tokens !== null &&
      t(numbers.cached_tokens ? "playground.prompt_cached" : "playground.prompt", {
        count: count(numbers.prompt_tokens),
        cached: count(numbers.cached_tokens),
      }),
    numbers.finish_reason && textOr(`playground.finish.${numbers.finish_reason}`, numbers.finish_reason),
  ];
  return h(
    "p",
    { class: "numbers" },
    parts
      .filter(Boolean)
      .map((part, index) => [index > 0 && h("span", { "aria-hidden": "true" }, " · "), h("span", {}, part)])
      .flat(),
  );
}
