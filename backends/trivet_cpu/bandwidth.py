"""How fast this host's memory is read: what bounds the decode of a model that no cache holds."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache

BUFFER_BYTES = 64 << 20  # of a thread: more than its share of any last-level cache
NUM_TRIALS = 2


@lru_cache(maxsize=4)
def read_bandwidth(num_threads: int) -> float:
    """Bytes/s that `num_threads` read together, the best of a few trials; takes about 0.1 s once.

    A busy host gives less. NumPy reduces without the GIL.
    """
    import numpy as np

    buffers = [np.ones(BUFFER_BYTES // 8, np.int64) for _ in range(num_threads)]
    with ThreadPoolExecutor(num_threads) as pool:
        best_s = float("inf")
        for _ in range(NUM_TRIALS):
            begun_s = time.perf_counter()
            list(pool.map(np.bitwise_xor.reduce, buffers))
            best_s = min(best_s, time.perf_counter() - begun_s)
    return num_threads * BUFFER_BYTES / best_s
