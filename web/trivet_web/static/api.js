// Talks to the server: the token, JSON requests with the server's own error messages, streams.

const KEY = "trivet-token";

/** The server's error object, or what kept us from getting one. `status` 0: nothing answered. */
export class ApiError extends Error {
  constructor(message, status, param = null) {
    super(message);
    this.status = status;
    this.param = param;
  }
}

/** Takes the token out of the address, so that it is in no history and no screenshot. */
export function takeTokenFromAddress() {
  const match = /^#token=(.+)$/.exec(location.hash);
  if (!match) return;
  setToken(decodeURIComponent(match[1]));
  history.replaceState(null, "", location.pathname);
}

/** Kept for this tab only. */
export const setToken = (token) => sessionStorage.setItem(KEY, token.trim());

/** Of a login: the cookie alone changes nothing. */
const csrf = document.querySelector('meta[name="csrf-token"]')?.content;

function headers(extra = {}) {
  const token = sessionStorage.getItem(KEY);
  if (token) return { Authorization: `Bearer ${token}`, ...extra };
  return csrf ? { "X-CSRF-Token": csrf, ...extra } : extra;
}

async function send(method, path, body, signal) {
  const options = { method, headers: headers(), signal, cache: "no-store" };
  if (body !== undefined) {
    options.headers = headers({ "Content-Type": "application/json" });
    options.body = JSON.stringify(body);
  }
  let response;
  try {
    response = await fetch(path, options);
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new ApiError("the server does not answer", 0);
  }
  if (response.ok) return response;
  const text = await response.text();
  try {
    const { message, param } = JSON.parse(text).error;
    throw new ApiError(message, response.status, param);
  } catch (error) {
    if (error instanceof ApiError) throw error;
    throw new ApiError(`the server answered ${response.status}: ${text.slice(0, 200)}`, response.status);
  }
}

/** @returns {Promise<any>} the decoded answer; null where there is none */
export async function request(method, path, body, signal) {
  const response = await send(method, path, body, signal);
  return response.status === 204 ? null : response.json();
}

export const list = async (path, signal) => (await request("GET", path, undefined, signal)).data;

export const text = async (path) => (await send("GET", path)).text();

async function readOrFail(reader) {
  try {
    return await reader.read();
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new ApiError("the connection broke before the answer was complete", 0);
  }
}

/**
 * The events of a streamed answer until [DONE].
 *
 * @throws {ApiError} also for an error event, and where the stream ends too early
 */
export async function* events(path, body, signal) {
  const response = await send("POST", path, body, signal);
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  while (true) {
    const { value, done } = await readOrFail(reader);
    if (done) throw new ApiError("the stream ended before the answer was complete", response.status);
    const blocks = (rest + value).split("\n\n");
    rest = blocks.pop();
    for (const block of blocks) {
      if (!block.startsWith("data: ")) continue; // a comment that keeps the connection open
      const data = block.slice("data: ".length);
      if (data === "[DONE]") return;
      const event = JSON.parse(data);
      if (event.error) throw new ApiError(event.error.message, response.status, event.error.param);
      yield event;
    }
  }
}
