"""How fast this host's memory is read: what bounds the decode of a model that no cache holds."""

from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

BUFFER_BYTES = 64 << 20  # of a thread: more than its share of any last-level cache
NUM_TRIALS = 8
AGAIN_S = 60.0


@dataclass(slots=True)
class _Best:
    bytes_per_s: float = 0.0
    measured_s: float = float("-inf")


_best: dict[int, _Best] = {}  # by the number of threads
_lock = threading.Lock()


def read_bandwidth(num_threads: int) -> float:
    """Bytes/s that `num_threads` read together: the most that this process has ever seen.

    A bound is what a free host gives, and a busy one gives less: so it is measured again, for about 0.1 s,
    where the last time is a minute ago.
    """
    with _lock:
        best = _best.setdefault(num_threads, _Best())
        if time.monotonic() - best.measured_s >= AGAIN_S:
            best.bytes_per_s = max(best.bytes_per_s, _measure(num_threads))
            best.measured_s = time.monotonic()
        return best.bytes_per_s


def _measure(num_threads: int) -> float:
    """NumPy reduces without the GIL."""
    import numpy as np

    buffers = [np.ones(BUFFER_BYTES // 8, np.int64) for _ in range(num_threads)]
    with ThreadPoolExecutor(num_threads) as pool:
        shortest_s = float("inf")
        for _ in range(NUM_TRIALS):
            begun_s = time.perf_counter()
            list(pool.map(np.bitwise_xor.reduce, buffers))
            shortest_s = min(shortest_s, time.perf_counter() - begun_s)
    return num_threads * BUFFER_BYTES / shortest_s
