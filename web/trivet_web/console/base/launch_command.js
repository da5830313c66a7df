// The same launch on the command line.

/** @param {string} text */
const quoted = (text) => (/^[\w@%+=:,./-]+$/.test(text) ? text : `'${text.replaceAll("'", "'\\''")}'`);

/** @param {Record<string, any>} body of POST /platform/v1/deployments */
export function commandOf(body) {
  const parts = [
    `trivet launch ${quoted(body.model || "MODEL")}`,
    body.name && `--name ${quoted(body.name)}`,
    body.backend !== "auto" && `--backend ${quoted(body.backend)}`,
    body.device && `--device ${quoted(body.device)}`,
    body.replicas > 1 && `--replicas ${body.replicas}`,
    body.priority && `--priority ${body.priority}`,
    body.fallback && `--fallback ${quoted(body.fallback)}`,
    ...Object.entries(body.settings).map(([key, value]) => `--set ${quoted(`${key}=${value}`)}`),
  ];
  return parts.filter(Boolean).join(" \\\n  ");
}
