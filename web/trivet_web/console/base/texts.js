// Words in the reader's language. Keys are those of the en.json and zh-CN.json files.

import { pageData } from "./page_data.js";

const plural = new Intl.PluralRules(pageData.language);

/**
 * @param {string} key
 * @param {Record<string, string | number>} [values] for the places in braces
 */
export function t(key, values = {}) {
  const text = pageData.texts[key];
  if (text === undefined) throw new Error(`no text ${key}; put it into en.json and zh-CN.json of its folder`);
  return text.replace(/\{(\w+)\}/g, (place, name) => String(values[name] ?? place));
}

/** A text for a number: KEY_one or KEY_other, with {count}. @param {string} key @param {number} count */
export function tn(key, count, values = {}) {
  const form = plural.select(count) === "one" ? "one" : "other";
  return t(`${key}_${form}`, { count: new Intl.NumberFormat(pageData.language).format(count), ...values });
}

/** The text if there is one, else what is given. @param {string} key @param {string} otherwise */
export const textOr = (key, otherwise) => pageData.texts[key] ?? otherwise;
