"""The watcher sees what the core may not do."""

from __future__ import annotations

from typing import Any, cast

import numpy as np
import pytest

from trivet.contract import Batch, Runner, Sampling, StepOutput
from trivet.contract_suite.sampling_oracle import RowSampling
from trivet.contract_suite.steps import DrivenSequence, Work, build_batch, build_sampling
from trivet.contract_suite.watched_runner import WatchedRunner


class Recorder:
    """Keeps what it is given."""

    features: frozenset[Any] = frozenset()
    max_in_flight = 2

    def __init__(self) -> None:
        self.seen: list[Batch | Sampling] = []

    def forward(self, batch: Batch) -> None:
        self.seen.append(batch)

    def sample(self, step: int, sampling: Sampling) -> None:
        self.seen.append(sampling)

    def collect(self, step: int) -> StepOutput:
        return cast("StepOutput", step)


def submitted() -> tuple[WatchedRunner, Recorder, Batch, Sampling]:
    recorder = Recorder()
    watched = WatchedRunner(cast("Runner", recorder))
    row = RowSampling(temperature=1.0)
    work = Work(DrivenSequence([5, 6], slot=0, blocks=[[3]]), 2, (1,), (row,))
    batch, _ = build_batch(1, [work], lambda size: np.zeros(size, np.int32))
    sampling = build_sampling([row], 50)
    watched.forward(batch)
    watched.sample(1, sampling)
    return watched, recorder, batch, sampling


def test_the_runner_gets_equal_arrays_in_other_memory() -> None:
    watched, recorder, batch, _ = submitted()
    seen = recorder.seen[0]
    assert isinstance(seen, Batch)
    np.testing.assert_array_equal(seen.token_ids, batch.token_ids)
    assert not np.shares_memory(seen.token_ids, batch.token_ids)
    watched.collect(1)


@pytest.mark.parametrize("name", ["token_ids", "block_tables", "uniform"])
def test_an_array_that_changes_before_collect_is_seen(name: str) -> None:
    watched, _, batch, sampling = submitted()
    array = {"token_ids": batch.token_ids, "block_tables": batch.block_tables[0], "uniform": sampling.uniform}
    array[name].flat[0] += 1
    with pytest.raises(AssertionError, match="the core changed an array of a step in flight"):
        watched.collect(1)
