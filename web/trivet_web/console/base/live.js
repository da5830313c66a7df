// The one event stream of this tab: what the site looks like now, kept up to date.
//
//   live.objects("instances", (all, isFresh) => ...)   all objects of a topic, by id, at each change
//   live.figures((at, figures) => ...)                 figures of this second
//   live.onStatus((status) => ...)                     "live", "connecting", "offline"
//
// A lost connection is taken up where it broke, after 1 to 30 s; a hidden tab has none (browsers allow six a
// site). An EventSource is not told why it was refused, so the server is asked: a login that has ended leads to
// the next one. Pages call `objects` and `figures` while they load; the stream is opened once, for all of it.

import { get } from "./api.js";

/** @typedef {"connecting" | "live" | "offline"} Status */
/** @typedef {Record<string, any>} LiveObject */
/** @typedef {{name: string, labels: Record<string, string>, value: number}} Figure */

const FIRST_PAUSE_MS = 1000;
const LONGEST_PAUSE_MS = 30_000;
/** @type {Record<string, (one: any) => string>} id of an object, as the server has it */
const KEYS = {
  site: () => "site",
  deployments: (one) => one.name,
  instances: (one) => one.id,
  devices: (one) => `${one.kind}:${one.uid}`,
  events: (one) => String(one.id),
};

export class Live {
  /** @param {{open?: (url: string) => EventSource, doc?: Document, random?: () => number, ask?: () => void}} [given] for tests */
  constructor({
    open = (url) => new EventSource(url),
    doc = globalThis.document,
    random = Math.random,
    ask = () => get("/platform/v1/status").catch(() => undefined), // api.js acts where there is no login
  } = {}) {
    this.open = open;
    this.ask = ask;
    this.doc = doc;
    this.random = random;
    /** @type {Map<string, Map<string, LiveObject>>} */
    this.known = new Map();
    /** @type {Map<string, ((all: Map<string, LiveObject>) => void)[]>} */
    this.listeners = new Map();
    /** @type {((at: number, figures: Figure[]) => void)[]} */
    this.figureListeners = [];
    /** @type {((status: Status, retryMs: number) => void)[]} */
    this.statusListeners = [];
    /** @type {Status} */
    this.status = "connecting";
    this.lastId = "";
    this.pauseMs = FIRST_PAUSE_MS;
    /** When the server was heard last, in milliseconds. */
    this.asOf = 0;
    /** @type {EventSource | null} */
    this.source = null;
    this.isPlanned = false;
    doc?.addEventListener("visibilitychange", () => (doc.hidden ? this.pause() : this.connectSoon()));
  }

  /** @param {string} topic @param {(all: Map<string, LiveObject>) => void} listener */
  objects(topic, listener) {
    if (!KEYS[topic]) throw new Error(`no topic ${topic}`);
    this.listeners.set(topic, [...(this.listeners.get(topic) ?? []), listener]);
    const known = this.known.get(topic);
    if (known) listener(known);
    else this.connectSoon();
  }

  /** @param {(at: number, figures: Figure[]) => void} listener */
  figures(listener) {
    this.figureListeners.push(listener);
    this.connectSoon();
  }

  /** @param {(status: Status, retryMs: number) => void} listener */
  onStatus(listener) {
    this.statusListeners.push(listener);
  }

  get topics() {
    return [...this.listeners.keys(), ...(this.figureListeners.length ? ["metrics"] : [])].sort();
  }

  connectSoon() {
    if (this.isPlanned) return;
    this.isPlanned = true;
    setTimeout(() => this.connect());
  }

  connect() {
    this.isPlanned = false;
    if (!this.topics.length || this.doc?.hidden) return;
    this.source?.close();
    const missing = this.topics.some((topic) => topic !== "metrics" && !this.known.has(topic));
    const query = new URLSearchParams({ topics: this.topics.join(",") });
    if (this.lastId && !missing) query.set("after", this.lastId);
    const source = (this.source = this.open(`/console/events?${query}`));
    source.addEventListener("open", () => this.setStatus("live"));
    source.addEventListener("error", () => this.retry(source));
    for (const topic of this.topics) {
      source.addEventListener(topic, (event) => this.take(topic, /** @type {MessageEvent} */ (event)));
    }
  }

  /** @param {EventSource} source */
  retry(source) {
    if (source !== this.source) return;
    this.pause();
    const wait = this.pauseMs * (0.75 + 0.5 * this.random());
    this.pauseMs = Math.min(2 * this.pauseMs, LONGEST_PAUSE_MS);
    this.setStatus("offline", wait);
    this.ask();
    this.timer = setTimeout(() => this.connectSoon(), wait);
  }

  pause() {
    clearTimeout(this.timer);
    this.source?.close();
    this.source = null;
  }

  /** @param {string} topic @param {MessageEvent} event */
  take(topic, event) {
    this.lastId = event.lastEventId;
    this.asOf = Date.now();
    this.pauseMs = FIRST_PAUSE_MS;
    const news = JSON.parse(event.data);
    if (topic === "metrics") {
      for (const one of news.set) for (const listener of this.figureListeners) listener(one.at, one.figures);
      return;
    }
    const all = news.all ? new Map() : new Map(this.known.get(topic));
    for (const one of news.all ?? news.set) all.set(KEYS[topic](one), one);
    for (const id of news.gone ?? []) all.delete(id);
    this.known.set(topic, all);
    for (const listener of this.listeners.get(topic) ?? []) listener(all);
  }

  /** @param {Status} status @param {number} [retryMs] */
  setStatus(status, retryMs = 0) {
    this.status = status;
    for (const listener of this.statusListeners) listener(status, retryMs);
  }
}

export const live = new Live();
