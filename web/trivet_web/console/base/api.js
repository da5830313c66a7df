// Requests to the server: the CSRF token, the server's own sentences for what failed, streamed answers.

import { languageOf, said } from "./said.js";
import { t, textOr } from "./texts.js";

/** What the server said, or what kept us from hearing it. `status` 0: nothing answered. */
export class ApiError extends Error {
  /**
   * @param {string} message
   * @param {number} status
   * @param {{param?: string | null, code?: string, requestId?: string | null, language?: string | null}} [more]
   *   `language` of the message where it is not the reader's
   */
  constructor(message, status, { param = null, code = "", requestId = null, language = null } = {}) {
    super(message);
    this.language = language;
    this.status = status;
    this.param = param;
    this.code = code;
    this.requestId = requestId;
  }
}

/** Of a login: the cookie alone changes nothing. */
const csrfToken = () =>
  /** @type {HTMLMetaElement | null} */ (document.querySelector('meta[name="csrf-token"]'))?.content;

/**
 * @param {string} method
 * @param {string} path
 * @param {{body?: unknown, signal?: AbortSignal}} options `body` is sent as JSON
 * @returns {Promise<Response>} one that is ok
 */
async function send(method, path, { body, signal }) {
  /** @type {Record<string, string>} */
  const headers = {};
  const token = csrfToken();
  if (token) headers["X-CSRF-Token"] = token;
  if (body !== undefined) headers["Content-Type"] = "application/json";
  let response;
  try {
    response = await fetch(path, {
      method,
      headers,
      body: body === undefined ? undefined : JSON.stringify(body),
      signal,
      cache: "no-store",
    });
  } catch (error) {
    if (isAbort(error)) throw error;
    throw new ApiError(t("base.no_answer"), 0);
  }
  if (response.ok) return response;
  throw await errorOf(response);
}

/** @param {Response} response */
async function errorOf(response) {
  const text = await response.text();
  const requestId = response.headers.get("X-Request-ID");
  if (response.status === 401) setTimeout(() => location.reload()); // the login has ended: the server leads there
  try {
    const { message, param, code } = JSON.parse(text).error;
    return ofServer(message, response.status, { param, code, requestId });
  } catch {
    return new ApiError(t("base.bad_answer", { status: response.status }), response.status, { requestId });
  }
}

/** @param {string} message of the server @param {number} status @param {Record<string, any>} more */
function ofServer(message, status, more) {
  const own = said(message);
  return new ApiError(own.charAt(0).toUpperCase() + own.slice(1), status, { ...more, language: languageOf(message) });
}

/** @param {unknown} error */
export const isAbort = (error) => error instanceof Error && error.name === "AbortError";

/** What to show of an error: a heading in the reader's language where the code has one. @param {ApiError} error */
export const headingOf = (error) => textOr(`base.error.${error.code}`, t("base.failed"));

/** @param {string} path @param {AbortSignal} [signal] @returns {Promise<any>} the decoded answer */
export const get = async (path, signal) => (await send("GET", path, { signal })).json();

/** `data` of a list. @param {string} path @param {AbortSignal} [signal] @returns {Promise<any[]>} */
export const list = async (path, signal) => (await get(path, signal)).data;

/** @param {string} path @param {AbortSignal} [signal] */
export const getText = async (path, signal) => (await send("GET", path, { signal })).text();

/** A body that is read as it comes, such as a log that is followed. @param {string} path @param {AbortSignal} signal */
export const follow = async (path, signal) =>
  /** @type {ReadableStream<Uint8Array>} */ ((await send("GET", path, { signal })).body);

/**
 * POST, PUT, PATCH or DELETE.
 *
 * @param {string} method
 * @param {string} path
 * @param {unknown} [body]
 * @param {AbortSignal} [signal]
 * @returns {Promise<any>} the decoded answer; null where there is none
 */
export async function change(method, path, body, signal) {
  const response = await send(method, path, { body, signal });
  return response.status === 204 ? null : response.json();
}

/**
 * The events of a streamed completion until [DONE].
 *
 * @param {string} path
 * @param {unknown} body
 * @param {AbortSignal} signal
 * @returns {AsyncGenerator<any>}
 * @throws {ApiError} also for an error event, and where the stream ends too early
 */
export async function* streamed(path, body, signal) {
  const response = await send("POST", path, { body, signal });
  const reader = /** @type {ReadableStream<any>} */ (response.body).pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  while (true) {
    const { value, done } = await readOrFail(reader);
    if (done) throw new ApiError(t("base.broke_off"), response.status);
    const blocks = (rest + value).split("\n\n");
    rest = blocks.pop() ?? "";
    for (const block of blocks) {
      if (!block.startsWith("data: ")) continue; // a comment that keeps the connection open
      const data = block.slice("data: ".length);
      if (data === "[DONE]") return;
      const event = JSON.parse(data);
      if (event.error) throw ofServer(event.error.message, response.status, event.error);
      yield event;
    }
  }
}

/** @param {ReadableStreamDefaultReader<string>} reader */
async function readOrFail(reader) {
  try {
    return await reader.read();
  } catch (error) {
    if (isAbort(error)) throw error;
    throw new ApiError(t("base.broke_off"), 0);
  }
}
