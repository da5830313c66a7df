// What is filtered, sorted and chosen on a page is in its address: a link shows what its sender saw.

/** @param {string} name */
export const filterOf = (name) => new URLSearchParams(location.search).get(name) ?? "";

/** @param {string} name @param {string} value empty: not in the address */
export function setFilter(name, value) {
  const query = new URLSearchParams(location.search);
  if (value) query.set(name, value);
  else query.delete(name);
  const text = query.toString();
  history.replaceState(null, "", text ? `?${text}` : location.pathname);
}

/**
 * A field whose value is in the address.
 *
 * @param {HTMLInputElement | HTMLSelectElement} field with a `name`
 * @param {(value: string) => void} onChange called now, too
 */
export function bindFilter(field, onChange) {
  field.value = filterOf(field.name);
  field.addEventListener("input", () => {
    setFilter(field.name, field.value);
    onChange(field.value);
  });
  onChange(field.value);
}

/** Whether each word of the filter is in the text. @param {string} text @param {string} filter */
export function matches(text, filter) {
  const lower = text.toLowerCase();
  return filter
    .toLowerCase()
    .split(/\s+/)
    .every((word) => lower.includes(word));
}
