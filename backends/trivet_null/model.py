"""The function that stands in for a model: next-token logits from a hash of all tokens so far.

    h(t) = sum over positions p <= t of weight(p) * (token(p) + 1)   modulo 2**64, then mixed
    logits(t) = noise[h(t) mod NUM_ROWS : ... + V]

So a token, a position or a block in the wrong place changes what comes next, and nothing else does.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from trivet.contract import Float32, Int32

    UInt64 = NDArray[np.uint64]

NUM_ROWS = 65_521  # distinct rows of logits; a prime
NOISE_SCALE = 3.0
NOISE_SEED = 1
GAMMA = np.uint64(0x9E3779B97F4A7C15)


def weights_bytes(num_tokens: int) -> int:
    """Of the noise."""
    return (num_tokens + NUM_ROWS) * 4


class NullModel:
    """The noise, and which part of it a sequence of tokens points to."""

    def __init__(self, num_tokens: int) -> None:
        generator = np.random.default_rng(NOISE_SEED)
        noise = generator.standard_normal(num_tokens + NUM_ROWS, dtype=np.float32)
        self._noise: Float32 = noise * np.float32(NOISE_SCALE)
        self._weights: UInt64 = np.empty(0, np.uint64)  # of positions, as far as they were needed
        self.num_tokens = num_tokens

    @property
    def size_bytes(self) -> int:
        return self._noise.nbytes

    def states(self, token_ids: Int32, positions: Int32) -> NDArray[np.int64]:
        """[N] what is known after each of the positions [N], from all tokens [T] since position 0."""
        if len(token_ids) > len(self._weights):
            self._weights = _mix(np.arange(1, 2 * len(token_ids) + 1, dtype=np.uint64) * GAMMA)
        sums = np.cumsum((token_ids + 1).astype(np.uint64) * self._weights[: len(token_ids)])
        return (_mix(sums[positions]) % np.uint64(NUM_ROWS)).astype(np.int64)

    def logits(self, state: int) -> Float32:
        """[V], a view of the noise."""
        return self._noise[state : state + self.num_tokens]

    def hidden(self, states: NDArray[np.int64], hidden_size: int) -> Float32:
        """[N, hidden_size], what stands in for final hidden states: noise from behind the logits' place."""
        places = states[:, None] + np.arange(hidden_size) + self.num_tokens // 2
        return self._noise.take(places, mode="wrap")

    def hidden_after_each(self, token_ids: Sequence[int], hidden_size: int) -> Float32:
        """[T, hidden_size]"""
        states = self.states(np.array(token_ids, np.int32), np.arange(len(token_ids), dtype=np.int32))
        return self.hidden(states, hidden_size)

    def logits_after_each(self, token_ids: Sequence[int]) -> Float32:
        """[T, V]"""
        states = self.states(np.array(token_ids, np.int32), np.arange(len(token_ids), dtype=np.int32))
        return np.stack([self.logits(state) for state in states])


def _mix(values: UInt64) -> UInt64:
    """MurmurHash3's 64-bit finaliser."""
    values = (values ^ (values >> np.uint64(33))) * np.uint64(0xFF51AFD7ED558CCD)
    values = (values ^ (values >> np.uint64(33))) * np.uint64(0xC4CEB9FE1A85EC53)
    return values ^ (values >> np.uint64(33))
