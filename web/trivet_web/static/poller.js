// Asks the server for the site's state once a second; slower while it does not answer, not at all while hidden.

import { list, request } from "./api.js";

const INTERVAL_MS = 1000;
const MAX_INTERVAL_MS = 10000;
const ANSWER_LIMIT_MS = 10000; // a server that hangs must not leave a page that says "Live"

/**
 * @typedef {{status: any, deployments: any[], instances: any[], devices: any[], events: any[], models: any[],
 *            at: number}} State
 */

export class Poller {
  /** @param {(state: State) => void} onState @param {(error: Error) => void} onError */
  constructor(onState, onError) {
    this.onState = onState;
    this.onError = onError;
    this.failures = 0;
    this.timer = 0;
    this.isAsking = false;
    document.addEventListener("visibilitychange", () => this.now());
  }

  /** Ask at once, as after an action of the operator. */
  async now() {
    clearTimeout(this.timer);
    if (document.hidden || this.isAsking) return;
    this.isAsking = true;
    try {
      this.onState(await read());
      this.failures = 0;
    } catch (error) {
      this.failures += 1;
      this.onError(error);
    }
    this.isAsking = false;
    const wait = Math.min(MAX_INTERVAL_MS, INTERVAL_MS * 2 ** this.failures);
    this.timer = setTimeout(() => this.now(), this.failures ? wait : INTERVAL_MS);
  }
}

async function read() {
  const root = "/platform/v1";
  const limit = AbortSignal.timeout(ANSWER_LIMIT_MS);
  const [status, deployments, devices, events, models] = await Promise.all([
    request("GET", `${root}/status`, undefined, limit),
    list(`${root}/deployments`, limit),
    list(`${root}/devices`, limit),
    list(`${root}/events?limit=40`, limit),
    list(`${root}/models`, limit),
  ]);
  const instances = deployments.flatMap((deployment) => deployment.instances);
  return { status, deployments, instances, devices, events, models, at: Date.now() };
}
