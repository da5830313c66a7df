// A line the size of a word, for tables.

import { svg } from "../dom.js";

const WIDTH = 96;
const HEIGHT = 20;

/** @param {(number | null)[]} values @param {string} label what it says in words @returns {SVGElement} */
export function sparkline(values, label) {
  const highest = Math.max(1e-9, ...values.map((value) => value ?? 0));
  const step = WIDTH / Math.max(1, values.length - 1);
  const points = values.map(
    (value, index) =>
      `${(index * step).toFixed(1)},${(HEIGHT - 1.5 - ((HEIGHT - 3) * (value ?? 0)) / highest).toFixed(1)}`,
  );
  return svg(
    "svg",
    {
      class: "sparkline",
      role: "img",
      "aria-label": label,
      viewBox: `0 0 ${WIDTH} ${HEIGHT}`,
      width: WIDTH,
      height: HEIGHT,
    },
    svg("polyline", { points: points.join(" ") }),
  );
}
