// From values to places on a chart.

/** The smallest of 1, 2, 5 times a power of ten that divides `max` into at most `parts`. @param {number} max @param {number} [parts] */
export function niceStep(max, parts = 4) {
  const power = 10 ** Math.floor(Math.log10(max / parts));
  const factor = [1, 2, 5, 10].find((one) => max / (one * power) <= parts * (1 + 1e-9));
  return power * (factor ?? 10);
}

/** @param {number} max @param {number} [parts] @returns {number[]} from 0 to at least `max` */
export function ticks(max, parts = 4) {
  if (!(max > 0)) return [0, 1];
  const step = niceStep(max, parts);
  const last = Math.ceil(max / step - 1e-9);
  return Array.from({ length: last + 1 }, (_, index) => Number((index * step).toPrecision(12)));
}

/** Round in the unit that they are read in: 1 GiB, 2 GiB, ... @param {number} max bytes @param {number} [parts] */
export function byteTicks(max, parts = 4) {
  const unit = max > 0 ? 1024 ** Math.floor(Math.log2(max) / 10) : 1;
  return ticks(max / unit, parts).map((one) => one * unit);
}

const STEPS_S = [1, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 14400, 21600, 43200, 86400];

/** Round times between two, in milliseconds. @param {number} from @param {number} to @param {number} most */
export function timeTicks(from, to, most) {
  const span = (to - from) / 1000;
  const step = 1000 * (STEPS_S.find((one) => span / one <= most) ?? 86400);
  const zone = new Date(to).getTimezoneOffset() * 60_000;
  const found = [];
  for (let at = Math.ceil((from - zone) / step) * step + zone; at <= to; at += step) found.push(at);
  return found;
}

/**
 * A quantile of observations that were counted by buckets, linear within one; null where there are none, and
 * Infinity beyond the last bound.
 *
 * @param {number} share 0 to 1
 * @param {number[]} bounds upper bounds of all buckets but the last
 * @param {number[]} counts one more than bounds
 */
export function quantile(share, bounds, counts) {
  const total = counts.reduce((sum, one) => sum + one, 0);
  if (!total) return null;
  let before = 0;
  for (let index = 0; index < counts.length; index += 1) {
    const upTo = before + counts[index];
    if (upTo >= share * total && counts[index]) {
      if (index === bounds.length) return Infinity;
      const low = index ? bounds[index - 1] : 0;
      return low + ((bounds[index] - low) * (share * total - before)) / counts[index];
    }
    before = upTo;
  }
  return Infinity;
}
