// Work that waits for a pause in what asks for it, such as typing.

/**
 * @template {any[]} Given
 * @param {(...given: Given) => unknown} work done once, with what was given last
 * @param {number} pauseMs
 * @returns {(...given: Given) => void}
 */
export function soon(work, pauseMs) {
  /** @type {ReturnType<typeof setTimeout> | undefined} */
  let timer;
  return (...given) => {
    clearTimeout(timer);
    timer = setTimeout(() => work(...given), pauseMs);
  };
}
