// Numbers, sizes and times as people read them, in the reader's language.

import { h } from "./dom.js";
import { pageData } from "./page_data.js";
import { t } from "./texts.js";

const language = pageData.language;
const plain = new Intl.NumberFormat(language, { maximumFractionDigits: 0 });
const precise = new Intl.NumberFormat(language, { maximumFractionDigits: 1 });
const clock = new Intl.DateTimeFormat(language, {
  hour: "2-digit",
  minute: "2-digit",
  second: "2-digit",
  hourCycle: "h23",
});
const whole = new Intl.DateTimeFormat(language, { dateStyle: "medium", timeStyle: "medium", hourCycle: "h23" });
const relative = new Intl.RelativeTimeFormat(language, { numeric: "auto", style: "short" });

export const NONE = "–";

/** @param {number | null | undefined} value */
export const count = (value) => (value === null || value === undefined ? NONE : plain.format(value));

/** One decimal below 100. @param {number | null | undefined} value */
export function rate(value) {
  if (value === null || value === undefined || Number.isNaN(value)) return NONE;
  return (value < 100 ? precise : plain).format(value);
}

/** @param {number | null | undefined} share 0 to 1 */
export const percent = (share) => (share === null || share === undefined ? NONE : `${plain.format(100 * share)} %`);

/** 1023.7 KiB would read as 1,024 KiB: it is 1 MiB. @param {number | null | undefined} value bytes */
export function bytes(value) {
  if (value === null || value === undefined) return NONE;
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  let power = 0;
  while (value >= 1023.5 && power < units.length - 1) {
    value /= 1024;
    power += 1;
  }
  return `${(power === 0 || value >= 100 ? plain : precise).format(value)} ${units[power]}`;
}

/** A short time: 840 µs, 84 ms, 1.2 s, 12 min. @param {number | null | undefined} seconds */
export function duration(seconds) {
  if (seconds === null || seconds === undefined || Number.isNaN(seconds)) return NONE;
  if (seconds === 0) return "0 ms";
  if (seconds < 0.001) return `${plain.format(seconds * 1e6)} µs`;
  if (seconds < 1) return `${(seconds < 0.01 ? precise : plain).format(seconds * 1000)} ms`;
  if (seconds < 60) return `${precise.format(seconds)} s`;
  if (seconds < 3600) return `${plain.format(Math.floor(seconds / 60))} min`;
  if (seconds < 86400) return `${Math.floor(seconds / 3600)} h ${Math.floor((seconds % 3600) / 60)} min`;
  return `${plain.format(Math.floor(seconds / 86400))} d ${Math.floor((seconds % 86400) / 3600)} h`;
}

/** Whole seconds; null where it has not begun. @param {string | null | undefined} iso the beginning */
export const secondsSince = (iso) => (iso ? Math.max(0, Math.floor((Date.now() - Date.parse(iso)) / 1000)) : null);

/** @param {string | null | undefined} iso the beginning */
export const since = (iso) => (iso ? duration(Math.max(0, (Date.now() - Date.parse(iso)) / 1000)) : NONE);

/** 13:05:07 today. @param {string | number} when ISO text, or milliseconds */
export const timeOfDay = (when) => clock.format(new Date(when));

/** @param {string | number} when ISO text, or milliseconds */
export const fullTime = (when) => whole.format(new Date(when));

/** "5 min ago", "in 3 days". @param {string} iso @param {number} [now] milliseconds */
export function ago(iso, now = Date.now()) {
  const seconds = (now - Date.parse(iso)) / 1000;
  const distance = Math.abs(seconds);
  if (distance < 5) return t("base.just_now");
  for (const [unit, size] of /** @type {[Intl.RelativeTimeFormatUnit, number][]} */ ([
    ["day", 86400],
    ["hour", 3600],
    ["minute", 60],
  ])) {
    if (distance >= size) return relative.format(-Math.sign(seconds) * Math.floor(distance / size), unit);
  }
  return relative.format(-Math.sign(seconds) * Math.floor(distance), "second");
}

/** A relative time whose title is the whole one. @param {string | null | undefined} iso */
export const timeNode = (iso) =>
  iso ? h("time", { datetime: iso, title: fullTime(iso), class: "nowrap" }, ago(iso)) : NONE;
