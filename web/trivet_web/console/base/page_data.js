// What the server tells the modules of a page (console/rendering.py): one <meta> of JSON.

/**
 * @typedef {object} PageData
 * @property {string} page name of its folder
 * @property {string | null} thing of a page that shows one model, deployment or instance
 * @property {string | null} user null: nobody is logged in
 * @property {string | null} role
 * @property {string[]} rights
 * @property {string} language
 * @property {Record<string, string>} texts
 * @property {Record<string, string>} sentences of the server, English and the reader's: see said.js
 * @property {{name: string, path: string, key: string, title: string}[]} pages that this reader may open
 */

/** @returns {PageData} */
function read() {
  const meta = globalThis.document?.querySelector('meta[name="page-data"]');
  const empty = { page: "", thing: null, user: null, role: null, rights: [], language: "en", texts: {} };
  return meta ? JSON.parse(/** @type {HTMLMetaElement} */ (meta).content) : { ...empty, sentences: {}, pages: [] };
}

export const pageData = read();

/** Whether the reader may do it: hide what they may not. @param {string} right of accounts/rights.py */
export const may = (right) => pageData.rights.includes(right);
