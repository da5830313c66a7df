// Text from models and logs made harmless to look at: it is shown, and cannot act on what is around it.

/** Controls that reorder or hide what stands beside them (Unicode TR 36, "Trojan Source"). */
const BIDI = /[\u202a-\u202e\u2066-\u2069\u200e\u200f\u061c]/g;
// eslint-disable-next-line no-control-regex
const CONTROL = /[\u0000-\u0008\u000b\u000c\u000e-\u001a\u001c-\u001f\u007f-\u009f]/g;
// eslint-disable-next-line no-control-regex
const ESCAPES = /\u001b(?:\[[0-?]*[ -/]*[@-~]|\][^\u0007\u001b]*(?:\u0007|\u001b\\)|[@-Z\\-_])/g;

/** Invisible controls become visible, as ⟨U+202E⟩. @param {string} text */
export function visibleText(text) {
  const name = (/** @type {string} */ sign) => `⟨U+${sign.charCodeAt(0).toString(16).toUpperCase().padStart(4, "0")}⟩`;
  return text.replace(BIDI, name).replace(CONTROL, name);
}

/** Without a terminal's escapes: colours, titles, moves of the cursor. @param {string} text */
export const withoutEscapes = (text) => text.replace(ESCAPES, "");
