"""Pools final hidden states as `Batch.pooling` asks; no torch."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import numpy as np

from trivet.contract import Batch, PoolKind

if TYPE_CHECKING:
    from trivet.contract import Float32

    SumOf = Callable[[int, int], Float32]


def pool(batch: Batch, hidden_size: int, sum_of: SumOf) -> Float32 | None:
    """[S, hidden_size], zeros where a sequence is not pooled; None where none is.

    Args:
        sum_of: gives, of the step's tokens [first, stop), the sum of their hidden states after the final
            norm [hidden_size].
    """
    if batch.pooling is None:
        return None
    pooled = np.zeros((len(batch.slots), hidden_size), np.float32)
    for index, first, stop in pooled_spans(batch):
        pooled[index] = sum_of(first, stop)
    return pooled


def pooled_spans(batch: Batch) -> Iterator[tuple[int, int, int]]:
    """Each sequence that is pooled, with the step's tokens [first, stop) whose hidden states are summed."""
    assert batch.pooling is not None
    for index in np.flatnonzero(batch.pooling).tolist():
        first, stop = batch.query_start_loc[index : index + 2].tolist()
        yield index, (stop - 1 if batch.pooling[index] == PoolKind.LAST else first), stop
