// Which series a chart draws: of what is stacked so many as there are colours, and the height stays true.

const MOST_STACKED = 8; // colours

/** @typedef {[string, (number | null)[]]} Series */

/**
 * @param {Series[]} found
 * @param {boolean | undefined} isStacked else each is a line, and colours come again
 * @param {string} others the name of the sum of those that are too many
 * @returns {Series[]}
 */
export function shownSeries(found, isStacked, others) {
  if (!isStacked || found.length <= MOST_STACKED) return found;
  const size = (/** @type {Series} */ [, values]) => values.reduce((sum, value) => (sum ?? 0) + (value ?? 0), 0) ?? 0;
  const ranked = [...found].sort((a, b) => size(b) - size(a));
  const kept = new Set(ranked.slice(0, MOST_STACKED - 1));
  const rest = ranked.slice(MOST_STACKED - 1).map(([, values]) => values);
  const sums = rest[0].map((_, index) =>
    rest.reduce(
      (sum, values) => (values[index] === null ? sum : (sum ?? 0) + values[index]),
      /** @type {number | null} */ (null),
    ),
  );
  return [...found.filter((one) => kept.has(one)), [others, sums]];
}
