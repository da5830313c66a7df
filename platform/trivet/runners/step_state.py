"""What a runner keeps between the calls of one step, and of each slot between steps; no torch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from trivet.contract import ON_DEVICE, Batch, Sampling, StepOutput
from trivet.engine.sampler import has_one_row_each
from trivet.errors import BackendError, OutOfMemory

if TYPE_CHECKING:
    from trivet.contract import Int32


@dataclass(slots=True)
class StepState:
    """One step between `forward` and `collect`."""

    batch: Batch
    started_s: float
    output: StepOutput | None = None
    failure: OutOfMemory | None = None

    def result(self) -> StepOutput:
        """Raises: OutOfMemory of the step; BackendError where `sample` has not been called."""
        step = self.batch.step
        if self.failure is not None:
            raise self.failure
        if self.output is None:
            raise BackendError(f"collect({step}) was called before sample({step})")
        return self.output


class NewestTokens:
    """The newest token of each slot, which the core may not have seen when it builds the next batch."""

    def __init__(self, num_slots: int) -> None:
        self._newest = np.zeros(num_slots, np.int32)

    def resolved(self, batch: Batch) -> Int32:
        """Token ids [T] with ON_DEVICE replaced by the newest token of the slot."""
        unseen = batch.token_ids == ON_DEVICE
        if not unseen.any():
            return batch.token_ids
        slots = np.repeat(batch.slots, np.diff(batch.query_start_loc))
        return np.where(unseen, self._newest[slots], batch.token_ids)

    def keep(self, batch: Batch, sampling: Sampling, output: StepOutput) -> None:
        """The last drawn token that counts becomes the newest of its slot."""
        if sampling.draws.all() and has_one_row_each(batch.row_seqs):
            self._newest[batch.slots[batch.row_seqs]] = output.token_ids
            return
        drawing = np.flatnonzero(sampling.draws)
        seqs, firsts = np.unique(batch.row_seqs[drawing], return_index=True)
        lasts = drawing[firsts + output.num_tokens[seqs] - 1]
        self._newest[batch.slots[seqs]] = output.token_ids[lasts]


def warm_up_batch(length: int, block_size: int) -> Batch:
    """One sequence of `length` tokens in the blocks from 1 on, before any sequence owns one.

    A plan has that many: one sequence of `max_model_len` always fits.
    """
    one = np.ones(1, np.int32)
    return Batch(
        step=0,
        slots=one * 0,
        query_start_loc=np.array([0, length], np.int32),
        seq_lens=one * length,
        block_tables=(1 + np.arange(-(-length // block_size), dtype=np.int32)[None],),
        token_ids=np.zeros(length, np.int32),
        positions=np.arange(length, dtype=np.int32),
        logits_rows=one * (length - 1),
        row_seqs=one * 0,
    )
