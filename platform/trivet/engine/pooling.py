"""Pooled hidden states of a sequence that is embedded: collected chunk by chunk, then made one vector."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from trivet.contract import PoolKind

if TYPE_CHECKING:
    from trivet.contract import Float32
    from trivet.engine.scheduler import Scheduled
    from trivet.engine.sequence import Sequence
    from trivet.pooling_params import PoolingParams


def pool_kind(part: Scheduled) -> PoolKind:
    """What the runner shall return for this part of a step."""
    pooling = part.sequence.pooling
    if pooling is None:
        return PoolKind.NONE
    if pooling.pooling == "mean":
        return PoolKind.SUM
    return PoolKind.LAST if _is_last(part) else PoolKind.NONE


def take_chunk(part: Scheduled, pooled: Float32) -> Float32 | None:
    """Take in what a step returned for a sequence [hidden_size]; its vector, where the prompt is complete.

    The vector may hold NaN or Inf, where the hidden states do.
    """
    sequence = part.sequence
    pooling = sequence.pooling
    assert pooling is not None, "the sequence is embedded"
    if pooling.pooling == "mean":
        # A sequence that was preempted starts over at 0: what it had is forgotten here.
        before = sequence.pooled_sum if part.start and sequence.pooled_sum is not None else 0.0
        sequence.pooled_sum = before + pooled.astype(np.float64)
        pooled = (sequence.pooled_sum / sequence.num_prompt_tokens).astype(np.float32)
    return finished_vector(pooled, pooling) if _is_last(part) else None


def finished_vector(pooled: Float32, pooling: PoolingParams) -> Float32:
    """The first `dimensions` of it, in the length that was asked for."""
    vector = pooled[: pooling.dimensions]
    if not pooling.normalize:
        return vector.copy()
    length = np.sqrt(np.sum(vector * vector, dtype=np.float64))
    unit: Float32 = (vector / max(length, np.finfo(np.float32).tiny)).astype(np.float32)
    return unit


def _is_last(part: Scheduled) -> bool:
    sequence: Sequence = part.sequence
    return part.start + part.num_tokens == sequence.num_prompt_tokens
