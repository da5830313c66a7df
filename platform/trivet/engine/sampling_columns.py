"""The contract's sampling columns: kept by slot, gathered for the rows of a step.

What a sequence asks for is written once, when it first draws in its slot; a step costs a few array
operations, and edits and masks cost nothing where no sequence wants them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from trivet.contract import NO_TARGET, Sampling
from trivet.engine.packed_mask import packed_mask
from trivet.engine.row_edits import RowEdits, joined, wants_edits
from trivet.engine.uniform import uniforms

if TYPE_CHECKING:
    from collections.abc import Sequence as Parts

    from numpy.typing import NDArray

    from trivet.contract import Batch, Bool, Float32, Int32, UInt32
    from trivet.engine.row_edits import Row
    from trivet.engine.scheduler import Scheduled
    from trivet.engine.sequence import Sequence

    UInt64 = NDArray[np.uint64]

ALL = 0xFFFFFFFF
NO_EDITS = (None, None, None, None)
NUM_AHEAD = 16  # steps whose random numbers are made at once
MAX_FLOAT32 = float(np.finfo(np.float32).max)


class _Columns(NamedTuple):
    """What stays the same as long as the same sequences decode."""

    key: tuple[tuple[int, bool, int], ...]  # slot, draws, number of scored tokens of each part
    slots: Int32  # [R]
    draws: Bool
    target_ids: Int32
    temperature: Float32
    top_k: Int32
    top_p: Float32
    min_p: Float32
    seed: UInt64
    num_logprobs: int
    has_edits: bool
    has_masks: bool
    is_greedy: bool
    sampling: Sampling | None = None  # where nothing else changes from token to token


class _Uniforms(NamedTuple):
    """Random numbers of the steps in which the same sequences go on by one token each."""

    seed: UInt64  # [R]
    positions: NDArray[np.integer]  # [R] of the first of these steps
    numbers: list[Float32]  # [R, 2] of each step, NUM_AHEAD of them


class SamplingColumns:
    """Columns of all slots."""

    def __init__(self, max_num_seqs: int, num_tokens: int) -> None:
        self._temperature = np.zeros(max_num_seqs, np.float32)
        self._top_k = np.zeros(max_num_seqs, np.int32)
        self._top_p = np.ones(max_num_seqs, np.float32)
        self._min_p = np.zeros(max_num_seqs, np.float32)
        self._seed = np.zeros(max_num_seqs, np.uint64)
        self._num_logprobs = np.zeros(max_num_seqs, np.int32)
        self._edits: list[RowEdits | None] = [None] * max_num_seqs
        self._has_edits = np.zeros(max_num_seqs, np.bool_)
        self._allowed: list[UInt32 | None] = [None] * max_num_seqs  # words of `allowed_token_ids`
        self._has_mask = np.zeros(max_num_seqs, np.bool_)
        self._owners: list[Sequence | None] = [None] * max_num_seqs
        self._num_tokens = num_tokens  # the contract's V
        self._kept: _Columns | None = None  # of the newest step
        self._ahead: _Uniforms | None = None

    def build(self, step: Parts[Scheduled], batch: Batch) -> Sampling:
        """Columns of the batch's rows. A drawn token's position = the tokens before it."""
        for part in step:
            if part.draws and self._owners[part.slot] is not part.sequence:
                self._set(part.slot, part.sequence)
                self._kept = None
        columns = self._columns_of(step, batch)
        if columns.sampling is None:
            return self._sampling(columns, step, batch)
        return columns.sampling

    def _sampling(self, columns: _Columns, step: Parts[Scheduled], batch: Batch) -> Sampling:
        slots = columns.slots
        edit_start, edit_ids, edit_mul, edit_add = self._edits_of(step) if columns.has_edits else NO_EDITS
        mask_rows, mask_bits = self._masks_of(slots, columns.draws) if columns.has_masks else (None, None)
        sampling = Sampling(
            draws=columns.draws,
            target_ids=columns.target_ids,
            temperature=columns.temperature,
            top_k=columns.top_k,
            top_p=columns.top_p,
            min_p=columns.min_p,
            uniform=self._uniform(columns, batch),
            num_logprobs=columns.num_logprobs,
            edit_start=edit_start,
            edit_ids=edit_ids,
            edit_mul=edit_mul,
            edit_add=edit_add,
            mask_rows=mask_rows,
            mask_bits=mask_bits,
            extra_ids=_extra_ids(step, len(slots)),
        )
        if columns.is_greedy and not columns.has_edits and not columns.has_masks:
            self._kept = columns._replace(sampling=sampling)
        return sampling

    def _columns_of(self, step: Parts[Scheduled], batch: Batch) -> _Columns:
        """The gathered columns; those of the step before where the same sequences decode."""
        key = tuple((part.slot, part.draws, part.num_scored) for part in step)
        kept = self._kept
        if kept is not None and kept.key == key and not any(part.num_scored for part in step):
            return kept
        slots = batch.slots[batch.row_seqs]
        draws, target_ids = _given_tokens(step, len(slots))
        num_logprobs = int(self._num_logprobs[slots[draws]].max(initial=0))
        self._kept = _Columns(
            key=key,
            slots=slots,
            draws=draws,
            target_ids=target_ids,
            temperature=self._temperature[slots],
            top_k=self._top_k[slots],
            top_p=self._top_p[slots],
            min_p=self._min_p[slots],
            seed=self._seed[slots],
            num_logprobs=max(num_logprobs, self._num_scored(step)),
            has_edits=bool(self._has_edits[slots].any()),
            has_masks=bool(self._has_mask[slots].any()),
            is_greedy=not self._temperature[slots].any(),
        )
        return self._kept

    def _uniform(self, columns: _Columns, batch: Batch) -> Float32:
        """[R, 2]; nobody reads them where every row is greedy."""
        if columns.is_greedy:
            return np.zeros((len(columns.slots), 2), np.float32)
        positions = batch.seq_lens[batch.row_seqs]
        if self._ahead is not None and self._ahead.seed is columns.seed:
            steps: list[int] = (positions - self._ahead.positions).tolist()
            if 0 <= steps[0] < NUM_AHEAD and steps.count(steps[0]) == len(steps):
                return self._ahead.numbers[steps[0]]
        # Made step by step they cost one stream 2 % of its time: a dozen array operations on two numbers.
        following = positions + np.arange(NUM_AHEAD)[:, None]
        numbers = uniforms(np.tile(columns.seed, NUM_AHEAD), following.ravel())
        self._ahead = _Uniforms(columns.seed, positions, list(numbers.reshape(NUM_AHEAD, -1, 2)))
        return self._ahead.numbers[0]

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
        self._edits[slot] = RowEdits(sequence, self._num_tokens) if wants_edits(sequence) else None
        self._has_edits[slot] = self._edits[slot] is not None
        allowed = params.allowed_token_ids
        self._allowed[slot] = None if allowed is None else packed_mask(allowed, self._num_tokens)
        self._has_mask[slot] = allowed is not None or sequence.grammar is not None

    def _num_scored(self, step: Parts[Scheduled]) -> int:
        """The largest `prompt_logprobs` of the step."""
        wanted = (part.sequence.params.prompt_logprobs or 0 for part in step if part.num_scored)
        return min(max(wanted, default=0), self._num_tokens)

    def _edits_of(
        self, step: Parts[Scheduled]
    ) -> tuple[Int32, Int32, Float32, Float32] | tuple[None, None, None, None]:
        """Sparse edits: start, ids, factors, summands; nothing at all where no row has any."""
        rows: list[Row | None] = []
        for part in step:
            rows += [None] * part.num_scored
            if part.draws:
                edits = self._edits[part.slot]
                rows.append(None if edits is None else edits.row(part.sequence.token_ids))
        if not any(row is not None and len(row[0]) for row in rows):
            return None, None, None, None
        return joined(rows)

    def _masks_of(self, slots: Int32, draws: Bool) -> tuple[Int32, UInt32] | tuple[None, None]:
        """Rows with a mask, and their words: what the grammar and `allowed_token_ids` both allow.

        A runner that works ahead computes meanwhile: the core comes here behind `forward`. On the CPU that
        takes a core from it: 32 of JSON take 0.7 ms of a step of 22.
        """
        rows = np.flatnonzero(self._has_mask[slots] & draws).astype(np.int32)
        if not rows.size:
            return None, None
        bits = np.full((len(rows), -(-self._num_tokens // 32)), ALL, np.uint32)
        owners = [self._owners[slot] for slot in slots[rows].tolist()]
        grammars = [
            (owner, owner.grammar, index)
            for index, owner in enumerate(owners)
            if owner is not None and owner.grammar is not None
        ]
        for owner, grammar, index in grammars:
            # One after the other: a pool of threads made no mask sooner (2 cores, 32 rows of one grammar),
            # and waiting awake it slowed the CPU's kernels from 38 to 52 ms.
            grammar.fill_mask(bits[index])
            if owner.params.ignore_eos:
                grammar.forbid_end(bits[index])
        for index, slot in enumerate(slots[rows].tolist()):
            allowed = self._allowed[slot]
            if allowed is not None:
                bits[index] &= allowed
        for index in np.flatnonzero(~bits.any(axis=1)).tolist():
            owner = owners[index]
            assert owner is not None, "a row that draws has an owner"
            owner.is_walled_in = True
        return rows, bits


def _extra_ids(step: Parts[Scheduled], num_rows: int) -> Int32 | None:
    """[R, n] `logprob_token_ids` of the rows that draw, filled up with 0; None where no row has any."""
    width = max((len(part.sequence.params.logprob_token_ids) for part in step if part.draws), default=0)
    if not width:
        return None
    extra = np.zeros((num_rows, width), np.int32)
    row = 0
    for part in step:
        row += part.num_scored + part.draws
        ids = part.sequence.params.logprob_token_ids
        if part.draws and ids:
            extra[row - 1, : len(ids)] = ids
    return extra


def _given_tokens(step: Parts[Scheduled], num_rows: int) -> tuple[Bool, Int32]:
    """[R] whether a row draws, and the prompt token that it scores where it does not."""
    draws = np.ones(num_rows, np.bool_)
    target_ids = np.full(num_rows, NO_TARGET, np.int32)
    row = 0
    for part in step:
        if part.num_scored:
            scored = slice(row, row + part.num_scored)
            first = part.first_scored + 1  # a row's token is the one that follows
            draws[scored] = False
            target_ids[scored] = part.sequence.prompt_token_ids[first : first + part.num_scored]
        row += part.num_scored + part.draws
    return draws, target_ids
