// The lines of a log in memory: bounded, filtered, with their levels.

import { withoutEscapes } from "./plain_text.js";

export const MOST_LINES = 50_000;
const SPARE = 5000; // are let go at once: each cut copies the rest
const LEVEL = /\b(?:level=)?(debug|info|warn(?:ing)?|error|critical|fatal)\b/i;
/** @type {Record<string, string>} */
const SHORT = { warn: "warning", critical: "error", fatal: "error" };

/** "" where a line does not say. @param {string} line */
export function levelOf(line) {
  const word = LEVEL.exec(line.slice(0, 200))?.[1].toLowerCase() ?? "";
  return SHORT[word] ?? word;
}

export class LogLines {
  constructor() {
    /** @type {string[]} */
    this.all = [];
    /** @type {string[]} those that the filter takes */
    this.shown = [];
    this.rest = "";
    /** @type {((line: string) => boolean) | null} */
    this.takes = null;
    this.numDropped = 0;
  }

  /** A piece of the log, which may end within a line. @param {string} text @returns {number} lines that are shown more */
  push(text) {
    const lines = (this.rest + text).split("\n");
    this.rest = lines.pop() ?? "";
    // Of a progress bar its last state.
    const whole = lines.map((line) => line.slice(line.replace(/\r$/, "").lastIndexOf("\r") + 1));
    const taken = this.takes ? whole.filter(this.takes) : whole;
    for (const line of whole) this.all.push(line);
    if (this.shown !== this.all) for (const line of taken) this.shown.push(line);
    if (this.all.length > MOST_LINES + SPARE) this.cut();
    return taken.length;
  }

  cut() {
    this.numDropped += this.all.length - MOST_LINES;
    this.all = this.all.slice(-MOST_LINES);
    this.refilter();
  }

  /**
   * @param {string} words a text, or /a regular expression/
   * @param {string} level "" takes all
   * @returns {string | null} what is wrong with the expression
   */
  filter(words, level) {
    const expression = /^\/(.+)\/(i?)$/.exec(words);
    let pattern = null;
    try {
      pattern = expression ? new RegExp(expression[1], expression[2]) : null;
    } catch (error) {
      return /** @type {Error} */ (error).message;
    }
    const lower = words.toLowerCase();
    const hasWords = (/** @type {string} */ line) =>
      pattern ? pattern.test(line) : line.toLowerCase().includes(lower);
    const isAll = !words && !level;
    this.takes = isAll
      ? null
      : (raw) => {
          const line = withoutEscapes(raw);
          return (!words || hasWords(line)) && (!level || levelOf(line) === level);
        };
    this.refilter();
    return null;
  }

  refilter() {
    this.shown = this.takes ? this.all.filter(this.takes) : this.all;
  }

  clear() {
    this.all = [];
    this.rest = "";
    this.numDropped = 0;
    this.refilter();
  }
}
