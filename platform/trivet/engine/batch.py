"""Lays a scheduled step out as the contract's flat arrays, all carved from one host buffer.

The numbers are gathered in lists and written in one go: with a few sequences each NumPy call costs more than
its elements, and a decode step of one stream has 0.3 ms for all of the host's work.
"""

from __future__ import annotations

from itertools import accumulate, chain
from typing import TYPE_CHECKING

import numpy as np

from trivet.contract import ON_DEVICE, Batch, BlockCopy, MemoryPlan, Runner
from trivet.engine.pooling import pool_kind

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from trivet.contract import Int32
    from trivet.engine.block_pool import BlockPool
    from trivet.engine.scheduler import Scheduled


class BatchBuilder:
    """Keeps as many buffers as steps may be in flight: a step's arrays rest until it is collected."""

    def __init__(
        self, runner: Runner, plan: MemoryPlan, pool: BlockPool, adapter_slots: Mapping[str, int]
    ) -> None:
        """Args: adapter_slots by name; it may grow."""
        num_seqs, width = pool.table.shape
        # Each token may bring a row, of two numbers: scored prompt tokens do.
        size = 4 * plan.max_num_batched_tokens + num_seqs * (5 + width) + 1
        self._buffers = [runner.host_buffer(size) for _ in range(runner.max_in_flight)]
        self._num_groups = len(plan.num_blocks)
        self._pool = pool
        self._adapter_slots = adapter_slots

    def build(self, number: int, step: Sequence[Scheduled], copies: tuple[BlockCopy, ...] = ()) -> Batch:
        """Args: number counts the steps; step is sorted by query length."""
        logits_rows, row_seqs = _rows(step)
        pieces = {
            "slots": [part.slot for part in step],
            "query_start_loc": list(accumulate((part.num_tokens for part in step), initial=0)),
            "seq_lens": [part.start + part.num_tokens for part in step],
            "token_ids": _token_ids(step),
            "positions": [p for part in step for p in range(part.start, part.start + part.num_tokens)],
            "logits_rows": logits_rows,
            "row_seqs": row_seqs,
            "pooling": _pooling(step),
            "adapters": self._adapters(step),
        }
        buffer = self._buffers[number % len(self._buffers)]
        values = list(chain.from_iterable(pieces.values()))
        buffer[: len(values)] = values
        ends = accumulate(map(len, pieces.values()))
        arrays = {
            name: buffer[end - len(piece) : end]
            for (name, piece), end in zip(pieces.items(), ends, strict=True)
        }
        table = self._block_table(buffer[len(values) :], arrays["slots"], max(pieces["seq_lens"]))
        return Batch(
            step=number,
            slots=arrays["slots"],
            query_start_loc=arrays["query_start_loc"],
            seq_lens=arrays["seq_lens"],
            block_tables=(table,) * self._num_groups,
            token_ids=arrays["token_ids"],
            positions=arrays["positions"],
            logits_rows=arrays["logits_rows"],
            row_seqs=arrays["row_seqs"],
            copies=copies,
            adapters=arrays["adapters"] if pieces["adapters"] else None,
            pooling=arrays["pooling"] if pieces["pooling"] else None,
        )

    def _adapters(self, step: Sequence[Scheduled]) -> list[int]:
        """[S] where a sequence has one, else nothing."""
        if not self._adapter_slots or not any(part.sequence.adapter for part in step):
            return []
        return [self._adapter_slots.get(part.sequence.adapter, 0) for part in step]

    def _block_table(self, buffer: Int32, slots: Int32, longest: int) -> Int32:
        """[S, blocks of the longest]; groups share it, because each has a block of every id."""
        width = -(-longest // self._pool.block_size)
        table = buffer[: len(slots) * width].reshape(len(slots), width)
        np.take(self._pool.table[:, :width], slots, axis=0, out=table, mode="clip")
        return table


def _pooling(step: Sequence[Scheduled]) -> list[int]:
    """[S] where a sequence is embedded, else nothing."""
    if all(part.sequence.pooling is None for part in step):
        return []
    return [pool_kind(part) for part in step]


def _rows(step: Sequence[Scheduled]) -> tuple[list[int], list[int]]:
    """Token indices [R] whose logits are wanted, and their sequences: the scored tokens, the last one."""
    rows: list[int] = []
    seqs: list[int] = []
    first = 0
    for index, part in enumerate(step):
        if part.num_scored:
            first_scored = first + part.first_scored - part.start
            rows += range(first_scored, first_scored + part.num_scored)
            seqs += [index] * part.num_scored
        first += part.num_tokens
        if part.draws:
            rows.append(first - 1)
            seqs.append(index)
    return rows, seqs


def _token_ids(step: Sequence[Scheduled]) -> list[int]:
    token_ids: list[int] = []
    for part in step:
        known = part.sequence.token_ids[part.start : part.start + part.num_tokens]
        token_ids += known
        token_ids += [ON_DEVICE] * (part.num_tokens - len(known))
    return token_ids
