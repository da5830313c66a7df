"""Which steps a captured decode serves, what it is given, and what happens where a capture fails."""

from __future__ import annotations

import logging

import numpy as np
import pytest
import torch
from torch import Tensor

from trivet.contract import Batch
from trivet_ascend.decode_graphs import DecodeGraphs, DecodeInputs, graph_sizes

BLOCK_SIZE, NUM_COLUMNS = 8, 4


class Replays:
    """Keeps what it was given; its hidden states are the token ids."""

    def __init__(self) -> None:
        self.given: list[DecodeInputs] = []

    def replay(self, inputs: DecodeInputs) -> Tensor:
        self.given.append(inputs)
        return torch.from_numpy(inputs.token_ids)[:, None]


class Captures:
    """Fails from a number of captures on."""

    def __init__(self, failing_after: int = 99) -> None:
        self.made: dict[int, Replays] = {}
        self._failing_after = failing_after

    def capture(self, size: int) -> Replays:
        if len(self.made) >= self._failing_after:
            raise RuntimeError("no streams are left")
        self.made[size] = Replays()
        return self.made[size]


def decodes(*seq_lens: int, queries: int = 1) -> Batch:
    """Sequence i has the blocks 10 i + 1, 10 i + 2 ... and its last tokens in this step."""
    count, lens = len(seq_lens), np.array(seq_lens, np.int32)
    table = 10 * np.arange(count, dtype=np.int32)[:, None] + np.arange(1, 4, dtype=np.int32)
    return Batch(
        step=1,
        slots=np.arange(count, dtype=np.int32),
        query_start_loc=np.arange(count + 1, dtype=np.int32) * queries,
        seq_lens=lens,
        block_tables=(table,),
        token_ids=np.arange(count * queries, dtype=np.int32) + 50,
        positions=np.repeat(lens - queries, queries) + np.tile(np.arange(queries, dtype=np.int32), count),
        logits_rows=np.arange(count, dtype=np.int32),
        row_seqs=np.arange(count, dtype=np.int32),
    )


def graphs(captures: Captures, *sizes: int) -> DecodeGraphs:
    made = DecodeGraphs(captures, BLOCK_SIZE, NUM_COLUMNS, lambda text: f"; cure of {text}")
    made.capture(sizes)
    return made


@pytest.mark.parametrize(
    ("most", "sizes"), [(1, (1,)), (2, (1, 2)), (12, (1, 2, 4, 8, 12)), (16, (1, 2, 4, 8, 16))]
)
def test_sizes_are_powers_of_two_and_the_most(most: int, sizes: tuple[int, ...]) -> None:
    assert graph_sizes(most) == sizes


def test_a_step_runs_in_the_next_size_and_padding_is_cut_off() -> None:
    captures = Captures()
    batch = decodes(9, 17, 3)
    hidden = graphs(captures, 1, 2, 4, 8).run(batch, batch.token_ids)
    assert hidden is not None
    assert hidden.flatten().tolist() == [50, 51, 52]
    assert {size: len(each.given) for size, each in captures.made.items()} == {1: 0, 2: 0, 4: 1, 8: 0}


def test_padding_writes_to_slots_of_its_own_in_scratch_and_reads_one_token() -> None:
    batch = decodes(9, 17, 3)
    inputs = DecodeInputs.padded(batch, batch.token_ids, 5, NUM_COLUMNS, BLOCK_SIZE)
    assert inputs.slots.tolist() == [2 * 8 + 0, 13 * 8 + 0, 21 * 8 + 2, 3, 4]
    assert inputs.seq_lens.tolist() == [9, 17, 3, 1, 1]
    assert inputs.positions.tolist() == [8, 16, 2, 0, 0]
    assert inputs.token_ids.tolist() == [50, 51, 52, 0, 0]
    assert inputs.block_table.tolist() == [[1, 2, 3, 0], [11, 12, 13, 0], [21, 22, 23, 0], [0] * 4, [0] * 4]


@pytest.mark.parametrize(
    "batch", [decodes(9, 17, queries=2), decodes(*[9] * 5)], ids=["two tokens a sequence", "too many"]
)
def test_what_no_graph_fits_runs_eagerly(batch: Batch) -> None:
    assert graphs(Captures(), 1, 2, 4).run(batch, batch.token_ids) is None


def test_sizes_beyond_a_block_are_not_captured() -> None:
    """Padding has as many slots as the scratch block."""
    assert graphs(Captures(), 8, 16).sizes == [8]


def test_a_failed_capture_leaves_no_graph_and_says_why(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        made = graphs(Captures(failing_after=2), 1, 2, 4)
    assert made.sizes == []
    assert made.run(decodes(9), np.array([1], np.int32)) is None
    assert "of 1 sequence could be captured: no streams are left; cure of no streams" in caplog.text
    assert made.failure
    assert made.failure in caplog.text


def test_nothing_is_replayed_after_close() -> None:
    made = graphs(Captures(), 1)
    made.close()
    assert made.run(decodes(9), np.array([1], np.int32)) is None
