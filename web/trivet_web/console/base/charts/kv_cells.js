// What a cell of a map of KV blocks looks like (client.BatchView).

import { t } from "../texts.js";

const BLANK = -1;
const CACHED = -2;
const SHARED = -3;
const NUM_COLOURS = 7; // the eighth of the series is that of shared blocks

/** @param {number} owner a slot, or what stands in its place @param {Map<number, string>} names of requests by slot @returns {import("./heat_map.js").Cell} */
export function cellOf(owner, names) {
  if (owner === BLANK) return { colour: "--line", label: t("base.kv.blank") };
  if (owner === CACHED) return { colour: "--muted", alpha: 0.6, label: t("base.kv.block_cached") };
  if (owner === SHARED) return { colour: "--series-7", label: t("base.kv.shared") };
  return { colour: `--series-${owner % NUM_COLOURS}`, label: names.get(owner) ?? String(owner) };
}

/** Shares of the blocks, 0 to 1. @param {number[]} blocks */
export function heldShares(blocks) {
  const share = (/** @type {(owner: number) => boolean} */ is) => blocks.filter(is).length / Math.max(1, blocks.length);
  return { held: share((owner) => owner >= 0 || owner === SHARED), cached: share((owner) => owner === CACHED) };
}
