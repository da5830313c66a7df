// Tables as files.

import { h } from "./dom.js";

/** A cell that a spreadsheet would compute is kept as text. @param {unknown} value */
function cell(value) {
  const text = value === null || value === undefined || Number.isNaN(value) ? "" : String(value);
  const safe = typeof value === "string" && /^[=+\-@\t\r]/.test(text) ? `'${text}` : text;
  return /[",\n\r]/.test(safe) ? `"${safe.replaceAll('"', '""')}"` : safe;
}

/** RFC 4180. @param {unknown[][]} rows */
export const csvOf = (rows) => rows.map((row) => `${row.map(cell).join(",")}\r\n`).join("");

/** @param {string} name @param {unknown[][]} rows */
export const downloadCsv = (name, rows) => download(name, "text/csv", csvOf(rows));

/** @param {string} name @param {string} type @param {string} text */
export function download(name, type, text) {
  const address = URL.createObjectURL(new Blob([text], { type: `${type};charset=utf-8` }));
  const link = h("a", { href: address, download: name });
  link.click();
  setTimeout(() => URL.revokeObjectURL(address), 10_000);
}
