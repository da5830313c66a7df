"""What the driver puts into a step, and its flat arrays: the contract's `Batch` and `Sampling`.

Written apart from the engine's own builder, so that the suite also works while that one is wrong.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from trivet.contract import ON_DEVICE, Batch, BlockCopy, PoolKind, Sampling
from trivet.contract_suite.sampling_oracle import RowSampling

Int32 = NDArray[np.int32]


@dataclass(eq=False)
class DrivenSequence:
    """One sequence as the driver knows it."""

    token_ids: list[int]  # prompt and committed tokens
    slot: int
    blocks: list[list[int]]  # [G] block ids in order of position
    adapter: int = 0  # slot; 0 is the base model
    num_computed: int = 0  # tokens whose KV is submitted
    num_unseen: int = 0  # tokens drawn on the device that the host has not seen: 0 or 1

    @property
    def num_left(self) -> int:
        """Tokens that are not yet submitted."""
        return len(self.token_ids) + self.num_unseen - self.num_computed


@dataclass(frozen=True, eq=False)
class Work:
    """What one step does for one sequence."""

    sequence: DrivenSequence
    query_len: int  # tokens, drafts included
    rows: tuple[int, ...] = ()  # offsets in the chunk whose logits are wanted
    sampling: tuple[RowSampling, ...] = ()  # one per row
    drafts: tuple[int, ...] = ()  # guesses behind the known tokens
    pooling: PoolKind = PoolKind.NONE


@dataclass(eq=False)
class Step:
    """One step on its way."""

    number: int
    works: list[Work]  # in the batch's order
    batch: Batch
    buffer: Int32  # the host buffer that the batch's arrays are carved from
    before: list[tuple[int, int]]  # of each work's sequence: tokens known and tokens computed
    sampling: Sampling | None = None

    @property
    def row_works(self) -> list[Work]:
        """Whose row each row is. [R]"""
        return [work for work in self.works for _ in work.rows]

    def rows_of(self, sequence: DrivenSequence) -> list[int]:
        return [row for row, work in enumerate(self.row_works) if work.sequence is sequence]

    def defined_rows(self, num_tokens: Int32) -> list[int]:
        """Scoring rows, and the drawing rows that count; what others hold is undefined."""
        defined: list[int] = []
        first = 0
        for work, count in zip(self.works, num_tokens, strict=True):
            drawing = [first + i for i, row in enumerate(work.sampling) if row.draws]
            scoring = [first + i for i, row in enumerate(work.sampling) if not row.draws]
            defined += scoring + drawing[: int(count)]
            first += len(work.rows)
        return sorted(defined)


def build_batch(
    number: int,
    works: Sequence[Work],
    host_buffer: Callable[[int], Int32],
    copies: tuple[BlockCopy, ...] = (),
    num_groups: int = 1,
) -> tuple[Batch, Int32]:
    """The batch of works sorted by query length, and the one buffer that holds its arrays.

    Called before the works' tokens count as computed.
    """
    starts = np.cumsum([0, *(work.query_len for work in works)])
    columns: list[Int32] = [
        _int32([work.sequence.slot for work in works]),
        _int32(starts),
        _int32([work.sequence.num_computed + work.query_len for work in works]),
        _int32([token for work in works for token in _tokens(work)]),
        _int32([position for work in works for position in _positions(work)]),
        _int32([start + row for start, work in zip(starts, works, strict=False) for row in work.rows]),
        _int32([index for index, work in enumerate(works) for _ in work.rows]),
        _int32([work.pooling for work in works]),
        _int32([work.sequence.adapter for work in works]),
        *(_table([work.sequence.blocks[group] for work in works]) for group in range(num_groups)),
    ]
    buffer = host_buffer(sum(column.size for column in columns))
    carved = _carve(buffer, columns)
    slots, query_start_loc, seq_lens, token_ids, positions, logits_rows, row_seqs = carved[:7]
    pooling, adapters, *tables = carved[7:]
    return Batch(
        step=number,
        slots=slots,
        query_start_loc=query_start_loc,
        seq_lens=seq_lens,
        block_tables=tuple(tables),
        token_ids=token_ids,
        positions=positions,
        logits_rows=logits_rows,
        row_seqs=row_seqs,
        copies=copies,
        adapters=adapters if adapters.any() else None,
        pooling=pooling if pooling.any() else None,
    ), buffer


def build_sampling(
    rows: Sequence[RowSampling], vocab_size: int, num_logprobs: int = 0, extra_ids: Int32 | None = None
) -> Sampling:
    """The columns of R rows; `extra_ids` [n] are wanted of every row."""
    edits = [edit for row in rows for edit in row.edits]
    masked = [index for index, row in enumerate(rows) if row.allowed is not None]
    return Sampling(
        draws=np.array([row.draws for row in rows], np.bool_),
        target_ids=_int32([row.target for row in rows]),
        temperature=np.array([row.temperature for row in rows], np.float32),
        top_k=_int32([row.top_k for row in rows]),
        top_p=np.array([row.top_p for row in rows], np.float32),
        min_p=np.array([row.min_p for row in rows], np.float32),
        uniform=np.array([row.uniform for row in rows], np.float32).reshape(len(rows), 2),
        num_logprobs=num_logprobs,
        extra_ids=None if extra_ids is None else np.tile(extra_ids.astype(np.int32), (len(rows), 1)),
        edit_start=_int32(np.cumsum([0, *(len(row.edits) for row in rows)])) if edits else None,
        edit_ids=_int32([token for token, _, _ in edits]) if edits else None,
        edit_mul=np.array([mul for _, mul, _ in edits], np.float32) if edits else None,
        edit_add=np.array([add for _, _, add in edits], np.float32) if edits else None,
        mask_rows=_int32(masked) if masked else None,
        mask_bits=_mask_bits([rows[index].allowed or () for index in masked], vocab_size) if masked else None,
    )


def arrays_of(value: Batch | Sampling) -> list[NDArray[np.generic]]:
    """Every array of a step's argument, block copies included."""
    found: list[NDArray[np.generic]] = []
    for name in value.__dataclass_fields__:
        member = getattr(value, name)
        for item in member if isinstance(member, tuple) else (member,):
            item = item.pairs if isinstance(item, BlockCopy) else item
            if isinstance(item, np.ndarray):
                found.append(item)
    return found


def _tokens(work: Work) -> list[int]:
    sequence = work.sequence
    known = [*sequence.token_ids, *([ON_DEVICE] * sequence.num_unseen), *work.drafts]
    return known[sequence.num_computed : sequence.num_computed + work.query_len]


def _positions(work: Work) -> range:
    return range(work.sequence.num_computed, work.sequence.num_computed + work.query_len)


def _table(blocks: Sequence[Sequence[int]]) -> Int32:
    widest = max((len(row) for row in blocks), default=0)
    table = np.zeros((len(blocks), widest), np.int32)
    for index, row in enumerate(blocks):
        table[index, : len(row)] = row
    return table


def _carve(buffer: Int32, columns: Sequence[Int32]) -> list[Int32]:
    carved, offset = [], 0
    for column in columns:
        view = buffer[offset : offset + column.size].reshape(column.shape)
        view[...] = column
        carved.append(view)
        offset += column.size
    return carved


def _mask_bits(allowed: Sequence[Sequence[int]], vocab_size: int) -> NDArray[np.uint32]:
    bits = np.zeros((len(allowed), -(-vocab_size // 32)), np.uint32)
    for row, token_ids in enumerate(allowed):
        for token_id in token_ids:
            bits[row, token_id // 32] |= np.uint32(1 << (token_id % 32))
    return bits


def _int32(values: object) -> Int32:
    return np.array(values, np.int32)
