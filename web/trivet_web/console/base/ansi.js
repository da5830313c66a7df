// A line of a terminal as pieces with colours; whatever else escapes would do is left out.

import { visibleText } from "./plain_text.js";

/** @typedef {{text: string, classes: string}} Piece */

// eslint-disable-next-line no-control-regex
const ESCAPE = /\u001b(?:\[([0-?]*)[ -/]*([@-~])|\][^\u0007\u001b]*(?:\u0007|\u001b\\)|[@-Z\\-_])/g;

/** @param {string} line @returns {Piece[]} */
export function piecesOf(line) {
  /** @type {Piece[]} */
  const pieces = [];
  let state = { colour: "", isBold: false };
  let at = 0;
  const push = (/** @type {string} */ text) => {
    if (text)
      pieces.push({
        text: visibleText(text),
        classes: [state.colour, state.isBold ? "ansi-bold" : ""].filter(Boolean).join(" "),
      });
  };
  for (const found of line.matchAll(ESCAPE)) {
    push(line.slice(at, found.index));
    if (found[2] === "m") state = turned(state, found[1]);
    at = found.index + found[0].length;
  }
  push(line.slice(at).replace("\u001b", ""));
  return pieces;
}

/** @param {{colour: string, isBold: boolean}} state @param {string} codes with semicolons */
function turned(state, codes) {
  const next = { ...state };
  const all = codes.split(";").map(Number);
  for (let index = 0; index < all.length; index += 1) {
    const code = all[index];
    if (code === 0) Object.assign(next, { colour: "", isBold: false });
    else if (code === 1) next.isBold = true;
    else if (code === 22) next.isBold = false;
    else if (code === 39) next.colour = "";
    else if ((code >= 30 && code <= 37) || (code >= 90 && code <= 97)) next.colour = `ansi-${code % 10}`;
    else if (code === 38 || code === 48) index += all[index + 1] === 5 ? 2 : 4; // of 256 or of all colours
  }
  return next;
}
