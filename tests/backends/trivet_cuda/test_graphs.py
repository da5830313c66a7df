"""Captured decodes: the right bucket, padding that harms nothing, and the buffers of the capture."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor

from trivet.contract import Batch
from trivet.contract_suite.recorded_graph import RecordedGraph
from trivet_cuda.device import Captured
from trivet_cuda.graphs import DecodeGraphs
from trivet_cuda.step_view import StepView

BLOCK_SIZE, NUM_COLUMNS = 4, 5


class FakeCaptures:
    """Graphs that are recorded; and remembers what was captured and replayed."""

    def __init__(self) -> None:
        self.captured: list[int] = []
        self.replayed: list[int] = []

    def __call__(self, run: Callable[[], Tensor]) -> Captured:
        graph, output = RecordedGraph.of(run)
        self.captured.append(len(output))

        def replay() -> None:
            self.replayed.append(len(output))
            graph.replay()

        return Captured(output, replay)


def everything(view: StepView) -> Tensor:
    """One row a token, of all that a step holds: [S, 5 + NUM_COLUMNS]."""
    columns = (view.token_ids, view.token_slots, view.positions, view.kv_slots, view.seq_lens)
    return torch.cat((torch.stack(columns, 1), view.block_table), 1).float()


def decodes(num_seqs: int, first: int = 1) -> Batch:
    count = np.arange(num_seqs, dtype=np.int32)
    positions = (first + count) % (BLOCK_SIZE * NUM_COLUMNS)
    width = int(positions.max(initial=0)) // BLOCK_SIZE + 1
    return Batch(
        step=first,
        slots=count + 3,
        query_start_loc=np.arange(num_seqs + 1, dtype=np.int32),
        seq_lens=positions + 1,
        block_tables=(10 + np.arange(num_seqs * width, dtype=np.int32).reshape(num_seqs, width),),
        token_ids=count * 7 - 1,
        positions=positions,
        logits_rows=count,
        row_seqs=count,
    )


@pytest.fixture
def captures() -> FakeCaptures:
    return FakeCaptures()


@pytest.fixture
def graphs(captures: FakeCaptures) -> DecodeGraphs:
    made = DecodeGraphs(everything, captures, BLOCK_SIZE, NUM_COLUMNS, torch.device("cpu"))
    made.capture((1, 2, 4, 8))
    return made


def test_the_largest_is_captured_first(graphs: DecodeGraphs, captures: FakeCaptures) -> None:
    assert captures.captured == [8, 4, 2, 1]
    assert graphs.buckets == (1, 2, 4, 8)


@pytest.mark.parametrize(("num_seqs", "bucket"), [(1, 1), (2, 2), (3, 4), (4, 4), (5, 8), (8, 8)])
def test_a_step_takes_the_smallest_bucket_that_holds_it(
    graphs: DecodeGraphs, captures: FakeCaptures, num_seqs: int, bucket: int
) -> None:
    batch = decodes(num_seqs)
    found = graphs.run(batch)
    assert captures.replayed == [bucket]
    assert found is not None
    assert found.shape == (num_seqs, 5 + NUM_COLUMNS)
    assert found[:, 0].tolist() == batch.token_ids.tolist()
    assert found[:, 1].tolist() == batch.slots.tolist()
    assert found[:, 4].tolist() == batch.seq_lens.tolist()
    table, at = batch.block_tables[0], batch.positions
    slots = table[np.arange(num_seqs), at // BLOCK_SIZE] * BLOCK_SIZE + at % BLOCK_SIZE
    assert found[:, 3].tolist() == slots.tolist()
    assert found[:, 5 : 5 + table.shape[1]].tolist() == table.tolist()


def test_nothing_of_the_step_before_is_left_in_the_padding(graphs: DecodeGraphs) -> None:
    """Rows without KV and without length: they write nothing, and the table has ids of blocks everywhere."""
    whole = graphs._buckets[4].captured.output
    given = {0}
    for count in (8, 7, 4, 3):
        batch = decodes(count, first=9)
        given |= set(batch.block_tables[0].ravel().tolist())
        graphs.run(batch)
    assert whole[3, :5].tolist() == [0, 0, 0, -1, 0]
    assert set(whole[:, 5:].flatten().tolist()) <= given


def test_a_step_with_a_prompt_or_with_too_many_sequences_is_not_taken(graphs: DecodeGraphs) -> None:
    batch = decodes(2)
    longer = Batch(
        **{
            **{name: getattr(batch, name) for name in batch.__slots__},
            "token_ids": np.zeros(3, np.int32),
            "query_start_loc": np.array([0, 1, 3], np.int32),
        }
    )
    assert graphs.run(longer) is None
    assert graphs.run(decodes(9)) is None
    assert graphs.run(decodes(0)) is None


def test_a_table_that_is_replaced_after_the_capture_is_not_read(captures: FakeCaptures) -> None:
    """As on a device: the graph has the memory of the first table. Written in place, it is read."""
    held = {"table": torch.full((4,), 1.0)}

    def forward(view: StepView) -> Tensor:
        return held["table"].index_select(0, view.token_slots)[:, None]

    graphs = DecodeGraphs(forward, captures, BLOCK_SIZE, NUM_COLUMNS, torch.device("cpu"))
    graphs.capture((1,))
    step = replace(decodes(1), slots=np.zeros(1, np.int32))
    held["table"].fill_(2.0)
    assert graphs.run(step) == 2.0
    held["table"] = torch.full((4,), 3.0)
    assert graphs.run(step) == 2.0


def test_the_buffers_of_the_capture_stay_where_they_are(graphs: DecodeGraphs) -> None:
    """What a graph reads: of each bucket the step's arrays and its table, from the same place on for all."""

    def places() -> list[tuple[int, int]]:
        return [(each.buffer.data_ptr(), each.block_table.data_ptr()) for each in graphs._buckets.values()]

    before = places()
    for num_seqs in (8, 1, 3):
        graphs.run(decodes(num_seqs))
    assert places() == before
    assert set(before) == {(graphs._buffer.data_ptr(), graphs._table.data_ptr())}


@pytest.mark.parametrize(
    "waiting",
    [
        lambda view: view.token_ids.float() * float(view.seq_lens.max()),
        lambda view: view.token_ids[view.seq_lens > 0].float(),
    ],
    ids=["a value", "a mask"],
)
def test_a_step_that_waits_for_the_device_runs_eagerly_with_a_warning(
    captures: FakeCaptures, caplog: pytest.LogCaptureFixture, waiting: Callable[[StepView], Tensor]
) -> None:
    graphs = DecodeGraphs(waiting, captures, BLOCK_SIZE, NUM_COLUMNS, torch.device("cpu"))
    graphs.capture((1, 2))
    assert graphs.buckets == ()
    assert "graphs=off" in caplog.text
    assert "of 2 sequences could be captured: operation not permitted" in graphs.failure
    assert graphs.run(decodes(1)) is None


def test_a_size_that_another_rank_has_not_is_not_kept(captures: FakeCaptures) -> None:
    graphs = DecodeGraphs(everything, captures, BLOCK_SIZE, NUM_COLUMNS, torch.device("cpu"))
    asked: list[bool] = []

    def have_all(succeeded: bool) -> bool:
        asked.append(succeeded)
        return len(asked) < 2

    graphs.capture((1, 2, 4), have_all)
    assert asked == [True, True]
    assert captures.captured == [4, 2]
    assert graphs.buckets == ()
    assert "another rank" in graphs.failure


@pytest.mark.parametrize(
    "error",
    [torch.OutOfMemoryError("CUDA out of memory"), RuntimeError("CUDA error: out of memory")],
    ids=str,
)
def test_lack_of_memory_in_a_capture_is_not_hidden(error: RuntimeError) -> None:
    """Nor from the other ranks, which would wait."""

    def capture(run: Callable[[], Tensor]) -> Captured:
        raise error

    graphs = DecodeGraphs(everything, capture, BLOCK_SIZE, NUM_COLUMNS, torch.device("cpu"))
    asked: list[bool] = []
    with pytest.raises(RuntimeError, match="out of memory"):
        graphs.capture((1,), lambda succeeded: bool(asked.append(succeeded)))
    assert asked == [False]
