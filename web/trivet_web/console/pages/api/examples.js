// A request of a route as it is written in a shell and in Python.

/** @param {string} origin @param {string} path @param {string} method @param {any} body */
export function curlOf(origin, path, method, body) {
  const start = `curl ${method === "get" ? "" : `-X ${method.toUpperCase()} `}${origin}${path} \\\n  -H "Authorization: Bearer $TRIVET_API_KEY"`;
  const quoted = JSON.stringify(body)?.replaceAll("'", "'\\''");
  return body === undefined || body === null
    ? start
    : `${start} \\\n  -H "Content-Type: application/json" \\\n  -d '${quoted}'`;
}

/** With httpx, as every route is asked alike. @param {string} origin @param {string} path @param {string} method @param {any} body */
export function pythonOf(origin, path, method, body) {
  const json = body === undefined || body === null ? "" : `    json=${literal(body)},\n`;
  return `import os\n\nimport httpx\n\nanswer = httpx.request(\n    "${method.toUpperCase()}",\n    "${origin}${path}",\n    headers={"Authorization": f"Bearer {os.environ['TRIVET_API_KEY']}"},\n${json})\nanswer.raise_for_status()\nprint(answer.text)`;
}

/** A value of JSON as Python writes it. @param {any} value @returns {string} */
export function literal(value) {
  if (value === null) return "None";
  if (typeof value === "boolean") return value ? "True" : "False";
  if (Array.isArray(value)) return `[${value.map(literal).join(", ")}]`;
  if (typeof value === "object")
    return `{${Object.entries(value)
      .map(([name, one]) => `${JSON.stringify(name)}: ${literal(one)}`)
      .join(", ")}}`;
  return JSON.stringify(value);
}
