// A bar of named shares of a device's memory, with a legend that says the same in words.

import { h } from "../dom.js";
import { bytes } from "../format.js";
import { t, textOr } from "../texts.js";

/**
 * @param {{name: string, size_bytes: number}[]} parts of a plan, or others with a word `base.memory.NAME`
 * @param {number} total bytes of the device; more than all parts leaves a rest that is free
 */
export function memoryBar(parts, total) {
  const used = parts.reduce((sum, part) => sum + part.size_bytes, 0);
  const whole = Math.max(total, used, 1);
  const shown = parts.filter((part) => part.size_bytes > 0);
  const bar = h("div", { class: "memory-bar", "aria-hidden": "true" });
  shown.forEach((part, index) => {
    const share = h("i");
    share.style.width = `${(100 * part.size_bytes) / whole}%`;
    share.style.background = `var(--series-${index % 8})`;
    bar.append(share);
  });
  if (total && total < used) {
    const limit = h("b", { class: "memory-limit" });
    limit.style.left = `${(100 * total) / whole}%`;
    bar.append(limit);
  }
  const legend = shown.map((part, index) =>
    entry(`--series-${index % 8}`, textOr(`base.memory.${part.name}`, part.name), part.size_bytes),
  );
  if (total > used) legend.push(entry("--line", t("base.memory.free"), total - used));
  return h("div", {}, bar, h("ul", { class: "legend" }, legend));
}

/** @param {string} colour @param {string} name @param {number} size */
function entry(colour, name, size) {
  const dot = h("i", { class: "dot" });
  dot.style.background = `var(${colour})`;
  return h("li", {}, dot, h("span", {}, name), h("b", {}, bytes(size)));
}
