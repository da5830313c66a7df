"""One step between `forward` and `collect`, and the newest token of each slot."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from trivet.contract import ON_DEVICE, Batch, PoolKind, Sampling, StepOutput
from trivet.errors import BackendError, OutOfMemory

if TYPE_CHECKING:
    from trivet.contract import Float32, Int32


@dataclass(slots=True)
class Step:
    """What is known of a step so far."""

    batch: Batch
    started_s: float
    hidden: Tensor | None = None  # [R, hidden_size] of the logits rows
    pooled: Float32 | None = None  # [S, hidden_size]
    output: StepOutput | None = None
    failure: OutOfMemory | None = None

    def result(self) -> StepOutput:
        """Raises: OutOfMemory of the step; BackendError where `sample` has not been called."""
        if self.failure is not None:
            raise self.failure
        if self.output is None:
            raise BackendError(f"collect({self.batch.step}) was called before sample({self.batch.step})")
        return self.output


class NewestTokens:
    """The host may not have seen the newest token of a slot when it builds the next batch."""

    def __init__(self, num_slots: int) -> None:
        self._newest = np.zeros(num_slots, np.int32)

    def resolved(self, batch: Batch) -> Int32:
        """Token ids [T] with ON_DEVICE replaced."""
        slots = np.repeat(batch.slots, np.diff(batch.query_start_loc))
        return np.where(batch.token_ids == ON_DEVICE, self._newest[slots], batch.token_ids).astype(np.int32)

    def keep(self, batch: Batch, sampling: Sampling, output: StepOutput) -> None:
        """The last drawn token that counts becomes the newest of its slot."""
        drawing = np.flatnonzero(sampling.draws)
        seqs, firsts = np.unique(batch.row_seqs[drawing], return_index=True)
        lasts = drawing[firsts + output.num_tokens[seqs] - 1]
        self._newest[batch.slots[seqs]] = output.token_ids[lasts]


def pooled_states(batch: Batch, hidden: Tensor) -> Float32 | None:
    """[S, hidden_size] as `Batch.pooling` asks, of hidden states [T, hidden_size]; None where none is."""
    if batch.pooling is None:
        return None
    pooled = np.zeros((len(batch.slots), hidden.shape[1]), np.float32)
    for index in np.flatnonzero(batch.pooling):
        first, stop = batch.query_start_loc[index : index + 2].tolist()
        first = stop - 1 if batch.pooling[index] == PoolKind.LAST else first
        pooled[index] = hidden[first:stop].sum(dim=0, dtype=torch.float32).cpu().numpy()
    return pooled


def warm_up_batch(length: int, block_size: int) -> Batch:
    """One sequence of `length` tokens in the blocks from 1 on, before any sequence owns one."""
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
