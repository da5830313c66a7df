// What an act changed, field by field.

/**
 * @param {Record<string, unknown> | null} before
 * @param {Record<string, unknown> | null} after
 * @returns {[string, string, string][]} name, before and after of the fields that differ
 */
export function changesOf(before, after) {
  const names = [...new Set([...Object.keys(before ?? {}), ...Object.keys(after ?? {})])];
  return names
    .map((name) => /** @type {[string, string, string]} */ ([name, textOf(before?.[name]), textOf(after?.[name])]))
    .filter(([, was, is]) => was !== is);
}

/** @param {unknown} value */
const textOf = (value) =>
  value === undefined || value === null ? "" : typeof value === "string" ? value : JSON.stringify(value);
