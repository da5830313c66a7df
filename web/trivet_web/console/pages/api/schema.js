// JSON Schemas of OpenAPI as people read them.

const DEPTH = 3;

/** @param {any} schema @param {any} document */
function resolved(schema, document) {
  const name = schema?.$ref?.split("/").pop();
  return name ? (document.components?.schemas?.[name] ?? {}) : (schema ?? {});
}

/** Names and types, nested as the JSON is. @param {any} schema @param {any} document @param {number} [depth] @returns {string} */
export function shapeOf(schema, document, depth = 0) {
  const one = resolved(schema, document);
  const pad = "  ".repeat(depth + 1);
  const options = one.anyOf ?? one.oneOf;
  if (options)
    return [...new Set(options.map((/** @type {any} */ option) => shapeOf(option, document, depth)))].join(" | ");
  if (one.enum) return one.enum.map((/** @type {any} */ value) => JSON.stringify(value)).join(" | ");
  if (one.const !== undefined) return JSON.stringify(one.const);
  if (one.type === "array") return `[${shapeOf(one.items ?? {}, document, depth)}]`;
  if (!one.properties) return one.type === "object" ? "{…}" : (one.type ?? "any");
  if (depth >= DEPTH) return "{…}";
  const required = new Set(one.required ?? []);
  const rows = Object.entries(one.properties).map(
    ([name, value]) => `${pad}${name}${required.has(name) ? "" : "?"}: ${shapeOf(value, document, depth + 1)}`,
  );
  return `{\n${rows.join("\n")}\n${"  ".repeat(depth)}}`;
}

/** The least body that the schema asks for. @param {any} schema @param {any} document @param {number} [depth] @returns {any} */
export function sampleOf(schema, document, depth = 0) {
  const one = resolved(schema, document);
  const options = one.anyOf ?? one.oneOf;
  if (one.default !== undefined) return one.default;
  if (options) return sampleOf(options[0], document, depth);
  if (one.enum) return one.enum[0];
  if (one.type === "array") return depth < DEPTH ? [sampleOf(one.items ?? {}, document, depth + 1)] : [];
  if (one.type === "string") return "…";
  if (one.type === "integer" || one.type === "number") return 1;
  if (one.type === "boolean") return false;
  if (!one.properties) return {};
  const wanted = Object.entries(one.properties).filter(([name]) => (one.required ?? []).includes(name));
  return Object.fromEntries(wanted.map(([name, value]) => [name, sampleOf(value, document, depth + 1)]));
}
