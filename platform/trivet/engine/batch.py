"""Lays a scheduled step out as the contract's flat arrays, all carved from one host buffer."""

from __future__ import annotations

from itertools import repeat
from typing import TYPE_CHECKING

import numpy as np

from trivet.contract import ON_DEVICE, Batch, MemoryPlan, Runner
from trivet.engine.pooling import pool_kind

if TYPE_CHECKING:
    from collections.abc import Sequence

    from trivet.contract import Int32
    from trivet.engine.block_pool import BlockPool
    from trivet.engine.scheduler import Scheduled


class _Carver:
    """Hands out consecutive pieces of a buffer."""

    def __init__(self, buffer: Int32) -> None:
        self._buffer = buffer
        self._used = 0

    def take(self, size: int) -> Int32:
        self._used += size
        return self._buffer[self._used - size : self._used]

    def put(self, values: Int32 | Sequence[int]) -> Int32:
        piece = self.take(len(values))
        piece[:] = values
        return piece


class BatchBuilder:
    """Keeps as many buffers as steps may be in flight: a step's arrays rest until it is collected."""

    def __init__(self, runner: Runner, plan: MemoryPlan, pool: BlockPool) -> None:
        num_seqs, width = pool.table.shape
        # Each token may bring a row, of two numbers: scored prompt tokens do.
        size = 4 * plan.max_num_batched_tokens + num_seqs * (4 + width) + 1
        self._buffers = [runner.host_buffer(size) for _ in range(runner.max_in_flight)]
        self._num_groups = len(plan.num_blocks)
        self._pool = pool

    def build(self, number: int, step: Sequence[Scheduled]) -> Batch:
        """Args: number counts the steps; step is sorted by query length."""
        carver = _Carver(self._buffers[number % len(self._buffers)])
        lengths = np.array([part.num_tokens for part in step], np.int32)
        starts = np.array([part.start for part in step], np.int32)
        slots = carver.put([part.slot for part in step])
        query_start_loc = carver.take(len(step) + 1)
        query_start_loc[0] = 0
        np.cumsum(lengths, out=query_start_loc[1:])
        num_tokens = int(query_start_loc[-1])

        positions = carver.put(np.arange(num_tokens, dtype=np.int32))
        positions += np.repeat(starts - query_start_loc[:-1], lengths)
        token_ids = carver.take(num_tokens)
        _fill_token_ids(token_ids, query_start_loc, step)
        logits_rows, row_seqs = _rows(query_start_loc, step)
        table = self._block_table(carver, slots, int((starts + lengths).max()))
        return Batch(
            step=number,
            slots=slots,
            query_start_loc=query_start_loc,
            seq_lens=carver.put(starts + lengths),
            block_tables=(table,) * self._num_groups,
            token_ids=token_ids,
            positions=positions,
            logits_rows=carver.put(logits_rows),
            row_seqs=carver.put(row_seqs),
            pooling=_pooling(carver, step),
        )

    def _block_table(self, carver: _Carver, slots: Int32, longest: int) -> Int32:
        """[S, blocks of the longest]; groups share it, because each has a block of every id."""
        width = -(-longest // self._pool.block_size)
        table = carver.take(len(slots) * width).reshape(len(slots), width)
        np.take(self._pool.table[:, :width], slots, axis=0, out=table, mode="clip")
        return table


def _pooling(carver: _Carver, step: Sequence[Scheduled]) -> Int32 | None:
    """[S] where a sequence is embedded."""
    if all(part.sequence.pooling is None for part in step):
        return None
    return carver.put([pool_kind(part) for part in step])


def _rows(query_start_loc: Int32, step: Sequence[Scheduled]) -> tuple[Int32, Int32]:
    """Token indices [R] whose logits are wanted, and their sequences: the scored tokens, the last one."""
    drawing = np.flatnonzero([part.draws for part in step]).astype(np.int32)
    lasts = query_start_loc[1:][drawing] - 1
    if not any(part.num_scored for part in step):
        return lasts, drawing
    rows, seqs = [lasts], [drawing]
    for index, part in enumerate(step):
        if part.num_scored:
            first = query_start_loc[index] + part.first_scored - part.start
            rows.append(np.arange(first, first + part.num_scored, dtype=np.int32))
            seqs.append(np.full(part.num_scored, index, np.int32))
    logits_rows = np.concatenate(rows)
    order = np.argsort(logits_rows)
    return logits_rows[order], np.concatenate(seqs)[order]


def _fill_token_ids(token_ids: Int32, query_start_loc: Int32, step: Sequence[Scheduled]) -> None:
    num_decodes = sum(part.num_tokens == 1 for part in step)
    token_ids[:num_decodes] = [
        part.sequence.token_ids[part.start] if part.start < len(part.sequence.token_ids) else ON_DEVICE
        for part in step[:num_decodes]
    ]
    for part, first in zip(step[num_decodes:], query_start_loc[num_decodes:].tolist(), strict=False):
        known = part.sequence.token_ids[part.start : part.start + part.num_tokens]
        known.extend(repeat(ON_DEVICE, part.num_tokens - len(known)))
        token_ids[first : first + part.num_tokens] = known
