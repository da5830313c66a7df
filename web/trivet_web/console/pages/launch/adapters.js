// The setting `adapters` of an engine as lines of a form: NAME=FOLDER.

/** @param {string} lines @returns {string} the setting; a folder that has one of its marks needs JSON */
export function adaptersOf(lines) {
  const pairs = lines
    .split("\n")
    .map((line) => line.trim())
    .filter(Boolean)
    .map((line) => {
      const [name, ...folder] = line.split("=");
      return [name.trim(), folder.join("=").trim()];
    });
  if (pairs.some(([, folder]) => /[,\s=]/.test(folder))) return JSON.stringify(Object.fromEntries(pairs));
  return pairs.map(([name, folder]) => `${name}=${folder}`).join(",");
}

/** @param {string} setting @returns {string} its lines */
export function linesOf(setting) {
  if (!setting.trim().startsWith("{")) return setting.replaceAll(",", "\n");
  try {
    return Object.entries(JSON.parse(setting))
      .map(([name, folder]) => `${name}=${folder}`)
      .join("\n");
  } catch {
    return setting;
  }
}
