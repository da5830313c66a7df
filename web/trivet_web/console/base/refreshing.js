// What is in no stream is asked for again now and then: another operator changes it, too.

const EVERY_MS = 15_000;

/** Also as soon as the tab is seen again. @param {() => unknown} read */
export function keepFresh(read, everyMs = EVERY_MS) {
  setInterval(() => document.hidden || read(), everyMs);
  document.addEventListener("visibilitychange", () => document.hidden || read());
}
