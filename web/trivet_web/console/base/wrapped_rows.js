// Which rows of the screen a log's lines take when long ones are broken: arithmetic, for lines out of sight are
// not in the page and so have no height of their own.

import { visibleText, withoutEscapes } from "./plain_text.js";

const PLAIN = /^[\x20-\x7e]*$/;
const TAB_CELLS = 8;
// East Asian scripts, full forms and pictures are two cells of a terminal's font wide.
const WIDE = /[\u1100-\u115f\u2e80-\ua4cf\uac00-\ud7a3\uf900-\ufaff\ufe30-\ufe6f\uff00-\uff60\uffe0-\uffe6]|[\u{1f000}-\u{1faff}\u{20000}-\u{3fffd}]/u;

/** Rows of `columns` cells that a line takes, broken at any letter. @param {string} line @param {number} columns */
export function rowsOf(line, columns) {
  if (!columns) return 1;
  const text = visibleText(withoutEscapes(line));
  if (PLAIN.test(text)) return Math.max(1, Math.ceil(text.length / columns));
  let rows = 1;
  let used = 0;
  for (const sign of text) {
    const cells = sign === "\t" ? TAB_CELLS : WIDE.test(sign) ? 2 : 1;
    if (used + cells > columns) {
      rows += 1;
      used = 0;
    }
    used += cells;
  }
  return rows;
}

export class WrappedRows {
  constructor() {
    this.columns = 0; // 0: each line is one row
    /** @type {readonly string[]} */
    this.lines = [];
    /** @type {number[]} the first row of each line, and one more: the number of rows */
    this.starts = [0];
  }

  /** Call after lines have come, others are shown, or the width has changed. @param {readonly string[]} lines @param {number} columns @param {number} most letters of a line that are shown */
  update(lines, columns, most) {
    if (lines !== this.lines || columns !== this.columns || lines.length < this.starts.length - 1) this.starts = [0];
    this.lines = lines;
    this.columns = columns;
    for (let index = this.starts.length - 1; index < lines.length; index += 1)
      this.starts.push(this.starts[index] + rowsOf(lines[index].slice(0, most), columns));
  }

  get count() {
    return this.starts[this.starts.length - 1];
  }

  /** The first row of a line. @param {number} line */
  rowOf(line) {
    return this.starts[Math.min(line, this.starts.length - 1)];
  }

  /** The line to which a row belongs. @param {number} row */
  lineAt(row) {
    let low = 0;
    let high = Math.max(0, this.starts.length - 2);
    while (low < high) {
      const middle = Math.ceil((low + high) / 2);
      if (this.starts[middle] <= row) low = middle;
      else high = middle - 1;
    }
    return low;
  }
}
