// A bar of named shares of a device's memory, with a legend that says the same in words.

import { h } from "./dom.js";
import { bytes } from "./format.js";

const NAMES = {
  weights: "weights",
  kv: "KV cache",
  activations: "activations",
  logits: "logits",
  graphs: "graphs",
  collectives: "collectives",
  context: "runtime",
  host_kv: "KV on host",
};

/**
 * @param {{name: string, size_bytes: number}[]} parts
 * @param {number} total bytes of the device; more than all parts leaves a rest that is free
 */
export function memoryBar(parts, total) {
  const used = parts.reduce((sum, part) => sum + part.size_bytes, 0);
  const whole = Math.max(total, used, 1);
  const shown = parts.filter((part) => part.size_bytes > 0);
  const bar = h("div", { class: "bar", "aria-hidden": "true" });
  shown.forEach((part, index) => {
    const share = h("i", { class: `share c${index % 6}` });
    share.style.width = `${(100 * part.size_bytes) / whole}%`;
    bar.append(share);
  });
  const legend = shown.map((part, index) =>
    h("li", {}, h("i", { class: `dot c${index % 6}` }), `${NAMES[part.name] ?? part.name} ${bytes(part.size_bytes)}`),
  );
  if (total > used) legend.push(h("li", {}, h("i", { class: "dot free" }), `free ${bytes(total - used)}`));
  return h("div", {}, bar, h("ul", { class: "legend" }, ...legend));
}
