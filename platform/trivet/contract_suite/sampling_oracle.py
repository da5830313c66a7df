"""One row at a time, in float64, word for word what `contract.Sampling` says: the sampler's oracle.

Written apart from `trivet.engine.sampler` on purpose, and slow: no vectorising, no shortcuts.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from trivet.contract import NO_TARGET

Float64 = NDArray[np.float64]


@dataclass(frozen=True)
class RowSampling:
    """The columns of one row, as plain values."""

    draws: bool = True
    target: int = NO_TARGET
    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    uniform: tuple[float, float] = (0.5, 0.5)
    edits: tuple[tuple[int, float, float], ...] = ()  # token id, mul, add
    allowed: tuple[int, ...] | None = None  # token ids that the mask lets through; None: no mask

    def at(self, first: float, second: float = 0.5) -> RowSampling:
        """The same with other random numbers."""
        return replace(self, uniform=(first, second))


@dataclass(frozen=True, slots=True)
class Drawn:
    """What a row gives."""

    token_id: int
    is_end: bool  # a draft was refused: later rows of the sequence do not count


def log_softmax(logits: NDArray[np.floating]) -> Float64:
    """Over the last axis, in float64."""
    wide = logits.astype(np.float64)
    shifted = wide - wide.max(axis=-1, keepdims=True)
    result: Float64 = shifted - np.log(np.exp(shifted).sum(axis=-1, keepdims=True))
    return result


def edited(logits: NDArray[np.floating], row: RowSampling) -> Float64:
    """The logits after edits and mask, before temperature. [V]"""
    result = logits.astype(np.float64).copy()
    for token_id, mul, add in row.edits:
        old = result[token_id]
        result[token_id] = (old / mul if old > 0 else old * mul) + add
    if row.allowed is not None:
        forbidden = np.ones(len(result), bool)
        forbidden[list(row.allowed)] = False
        result[forbidden] = -np.inf
    return result


def probabilities(logits: NDArray[np.floating], row: RowSampling) -> Float64:
    """The distribution that the row's token is drawn from, at a temperature above 0. [V]

    Tokens of equal probability stay or go together.
    """
    left = np.exp(log_softmax(edited(logits, row) / row.temperature))
    order = np.argsort(-left, kind="stable")
    if 0 < row.top_k < len(left):
        left = _keep(left, np.flatnonzero(left >= left[order[row.top_k - 1]]))
    if row.top_p < 1:
        mass_before = np.cumsum(left[order]) - left[order]
        num_kept = max(1, int((mass_before < row.top_p).sum()))
        left = _keep(left, np.flatnonzero(left >= left[order[num_kept - 1]]))
    if row.min_p > 0:
        left = _keep(left, np.flatnonzero(left >= row.min_p * left.max()))
    return left


def draw(logits: NDArray[np.floating], row: RowSampling) -> Drawn:
    """The token of one drawing row over its raw logits [V]."""
    if row.temperature == 0:
        best = int(edited(logits, row).argmax())
        return Drawn(best, is_end=row.target not in (NO_TARGET, best))
    chances = probabilities(logits, row)
    if row.target == NO_TARGET:
        return Drawn(_first_above(chances, row.uniform[0]), is_end=False)
    if row.uniform[1] < chances[row.target]:
        return Drawn(row.target, is_end=False)
    chances[row.target] = 0
    return Drawn(_first_above(chances / chances.sum(), row.uniform[0]), is_end=True)


def draw_sequence(logits: Sequence[NDArray[np.floating]], rows: Sequence[RowSampling]) -> list[int]:
    """The tokens that count, of a sequence's drawing rows in order."""
    tokens = []
    for row_logits, row in zip(logits, rows, strict=True):
        drawn = draw(row_logits, row)
        tokens.append(drawn.token_id)
        if drawn.is_end:
            break
    return tokens


def middle_of(logits: NDArray[np.floating], row: RowSampling, token_id: int) -> float:
    """A uniform number in the middle of a token's share, so that rounding cannot change the draw."""
    chances = probabilities(logits, row)
    before = float(chances[:token_id].sum())
    return before + float(chances[token_id]) / 2


def rank_of(logits: NDArray[np.floating], token_id: int) -> int:
    """1 = most likely; among equals the best rank."""
    return int((logits > logits[token_id]).sum()) + 1


def _keep(left: Float64, ids: NDArray[np.int64]) -> Float64:
    kept = np.zeros_like(left)
    kept[ids] = left[ids]
    total: Float64 = kept / kept.sum()
    return total


def _first_above(chances: Float64, uniform: float) -> int:
    above = np.flatnonzero(np.cumsum(chances) > uniform)
    return int(above[0]) if len(above) else int(np.flatnonzero(chances)[-1])
