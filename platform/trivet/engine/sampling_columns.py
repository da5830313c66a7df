"""The contract's sampling columns: kept by slot, gathered for the rows of a step.

What a sequence asks for is written once, when it first draws in its slot; a step costs a few array
operations.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from trivet.contract import NO_TARGET, Sampling
from trivet.engine.uniform import uniforms

if TYPE_CHECKING:
    from collections.abc import Sequence as Parts

    from numpy.typing import NDArray

    from trivet.contract import Batch, Int32
    from trivet.engine.scheduler import Scheduled
    from trivet.engine.sequence import Sequence

NO_IDS: Int32 = np.empty(0, np.int32)
MAX_INT32 = int(np.iinfo(np.int32).max)
MAX_FLOAT32 = float(np.finfo(np.float32).max)


class SamplingColumns:
    """Columns of all slots."""

    def __init__(self, max_num_seqs: int, num_tokens: int) -> None:
        self._temperature = np.zeros(max_num_seqs, np.float32)
        self._top_k = np.zeros(max_num_seqs, np.int32)
        self._top_p = np.ones(max_num_seqs, np.float32)
        self._min_p = np.zeros(max_num_seqs, np.float32)
        self._seed = np.zeros(max_num_seqs, np.uint64)
        self._num_logprobs = np.zeros(max_num_seqs, np.int32)
        self._stop_after = np.zeros(max_num_seqs, np.int32)  # total tokens before which no stop id is drawn
        self._stop_ids: list[Int32] = [NO_IDS] * max_num_seqs
        self._owners: list[Sequence | None] = [None] * max_num_seqs
        self._num_tokens = num_tokens  # the contract's V

    def build(self, step: Parts[Scheduled], batch: Batch) -> Sampling:
        """Columns of the batch's rows, all of which draw. A drawn token's position = the tokens before it."""
        for part in step:
            if part.draws and self._owners[part.slot] is not part.sequence:
                self._set(part.slot, part.sequence)
        slots = batch.slots[batch.row_seqs]
        positions = batch.seq_lens[batch.row_seqs]
        edit_start, edit_ids = self._forbidden(slots, positions)
        return Sampling(
            draws=np.ones(len(slots), np.bool_),
            target_ids=np.full(len(slots), NO_TARGET, np.int32),
            temperature=self._temperature[slots],
            top_k=self._top_k[slots],
            top_p=self._top_p[slots],
            min_p=self._min_p[slots],
            uniform=uniforms(self._seed[slots], positions),
            num_logprobs=int(self._num_logprobs[slots].max(initial=0)),
            edit_start=edit_start,
            edit_ids=edit_ids,
            edit_mul=None if edit_ids is None else np.ones(len(edit_ids), np.float32),
            edit_add=None if edit_ids is None else np.full(len(edit_ids), -np.inf, np.float32),
        )

    def _set(self, slot: int, sequence: Sequence) -> None:
        """Take over what the sequence asks for."""
        self._owners[slot] = sequence
        params = sequence.params
        # A request may ask for more than a column holds; what does not fit changes nothing.
        self._temperature[slot] = min(params.temperature, MAX_FLOAT32)
        self._top_k[slot] = min(max(params.top_k, 0), self._num_tokens)
        self._top_p[slot] = params.top_p
        self._min_p[slot] = params.min_p
        self._seed[slot] = sequence.seed
        self._num_logprobs[slot] = min(params.logprobs or 0, self._num_tokens)
        self._stop_after[slot] = min(sequence.num_prompt_tokens + params.min_tokens, MAX_INT32)
        stop_ids = sorted(token for token in sequence.stop_ids if token < self._num_tokens)
        self._stop_ids[slot] = np.array(stop_ids, np.int32)

    def _forbidden(self, slots: Int32, positions: Int32) -> tuple[Int32, Int32] | tuple[None, None]:
        """Sparse edits' start and ids: stop ids before `min_tokens` are there."""
        too_early: NDArray[np.bool_] = positions < self._stop_after[slots]
        if not too_early.any():
            return None, None
        ids = [
            self._stop_ids[slot] if early else NO_IDS
            for slot, early in zip(slots.tolist(), too_early.tolist(), strict=True)
        ]
        start = np.zeros(len(slots) + 1, np.int32)
        np.cumsum([len(row) for row in ids], out=start[1:])
        return start, np.concatenate(ids)
