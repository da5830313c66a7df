"""Random numbers as a pure function of a sequence's seed and a token's position.

So a draw does not depend on the batch, on a preemption or on a retry, and no generator has to be kept or
restored. The function is SplitMix64's output mix (Steele, Lea, Flood: Fast splittable pseudorandom number
generators, 2014) over a counter.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from trivet.contract import Float32

    UInt64 = NDArray[np.uint64]

GAMMA = np.uint64(0x9E3779B97F4A7C15)  # 2**64 over the golden ratio, odd
LANES = np.arange(1, 3, dtype=np.uint64)  # from 1, because 0 is a fixed point of the mix


def uniforms(seeds: UInt64, positions: NDArray[np.integer]) -> Float32:
    """[R, 2] in [0, 1), from seeds [R] and positions [R] of the tokens to be drawn.

    Multiples of 2**-24, so that float32 holds them exactly and never 1.
    """
    counters = 2 * positions.astype(np.uint64)[:, None] + LANES
    bits = _mix(_mix(seeds)[:, None] + counters * GAMMA) >> np.uint64(40)
    return bits.astype(np.float32) * np.float32(2.0**-24)


def _mix(values: UInt64) -> UInt64:
    values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return values ^ (values >> np.uint64(31))
