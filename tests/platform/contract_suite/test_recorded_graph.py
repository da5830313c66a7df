"""A recorded graph does again what was done, over the memory that it was done with."""

from __future__ import annotations

import pytest
import torch

from trivet.contract_suite.recorded_graph import RecordedGraph


def test_a_replay_reads_the_buffers_of_the_capture_and_not_what_replaced_them() -> None:
    held = {"x": torch.tensor([1.0, 2.0])}
    kept = held["x"]
    graph, output = RecordedGraph.of(lambda: (held["x"] * 2).view(2, 1)[1:] + 1)
    kept.fill_(10.0)
    graph.replay()
    assert output.tolist() == [[21.0]]
    held["x"] = torch.zeros(2)
    graph.replay()
    assert output.tolist() == [[21.0]]


def test_numbers_of_the_host_are_those_of_the_capture() -> None:
    held = {"factor": 2.0}
    x = torch.ones(1)
    graph, output = RecordedGraph.of(lambda: x * held["factor"])
    held["factor"] = 5.0
    graph.replay()
    assert output.tolist() == [2.0]


def test_what_is_written_in_place_is_written_again() -> None:
    table, at, new = torch.zeros(3), torch.tensor([1]), torch.ones(1)

    def run() -> torch.Tensor:
        table.index_copy_(0, at, new)
        return table.sum()

    graph, output = RecordedGraph.of(run)
    at.fill_(2)
    graph.replay()
    assert table.tolist() == [0.0, 1.0, 1.0]
    assert output.item() == 2.0


def test_what_would_wait_for_a_device_is_refused() -> None:
    with pytest.raises(RuntimeError, match="stream is capturing"):
        RecordedGraph.of(lambda: torch.ones(2)[: int(torch.ones(1).item())])
