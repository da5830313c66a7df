"""The suite finds what it is there to find: memory, loading and closing gone wrong."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from numpy.typing import NDArray

from trivet.contract import Batch, BlockCopy, Sampling, StepOutput
from trivet.contract_suite.cases import test_host_kv, test_memory
from trivet.contract_suite.defects import Defect, Hunt
from trivet.contract_suite.plain_runner import PlainRunner
from trivet.errors import BackendError
from trivet.weights.index import WeightIndex

Float32 = NDArray[np.float32]


class Leaks(PlainRunner):
    def draw(self, logits: Float32, sampling: Sampling, batch: Batch) -> StepOutput:
        self.leak = [*getattr(self, "leak", []), np.ones(1 << 18, np.float32)]
        return super().draw(logits, sampling, batch)


class HoldsMoreThanPlanned(PlainRunner):
    def load(self, weights: WeightIndex, on_progress: Callable[[int, int], None]) -> None:
        super().load(weights, on_progress)
        self.weights["spare"] = np.ones(weights.size_bytes // 40, np.float32)


class PromisesBlocksThatAreNotThere(PlainRunner):
    def allocate_kv(self) -> None:
        self.kv = []


class ReportsNoProgress(PlainRunner):
    def load(self, weights: WeightIndex, on_progress: Callable[[int, int], None]) -> None:
        super().load(weights, lambda done, total: on_progress(0, total))


class ClosesOnce(PlainRunner):
    is_closed = False

    def close(self) -> None:
        if self.is_closed:
            raise BackendError("the runner is closed")
        self.is_closed = True


class LosesTheLastSwappedBlock(PlainRunner):
    def copy_one(self, copy: BlockCopy) -> None:
        pairs = copy.pairs[:-1] if copy.to_host else copy.pairs
        super().copy_one(replace(copy, pairs=pairs))


class BringsBlocksInBeforeOthersGoOut(PlainRunner):
    def copy_blocks(self, batch: Batch) -> None:
        for copy in sorted(batch.copies, key=lambda copy: copy.to_host):
            self.copy_one(copy)


class SwapsAheadOfItsQueue(PlainRunner):
    """As a device that copies on a stream of its own and does not wait for the steps before."""

    def forward(self, batch: Batch) -> None:
        for copy in batch.copies:
            self.copy_one(copy)
        super().forward(replace(batch, copies=()))


class PlansNoRoomForTheSwapSpace(PlainRunner):
    def allocate_kv(self) -> None:
        super().allocate_kv()
        self.host_kv = [layer[:0] for layer in self.host_kv]


DEFECTS = [
    Defect(LosesTheLastSwappedBlock, test_host_kv.test_a_sequence_that_was_swapped_out_goes_on_where_it_was),
    Defect(
        BringsBlocksInBeforeOthersGoOut,
        test_host_kv.test_the_copies_of_a_batch_are_carried_out_one_after_the_other,
    ),
    Defect(SwapsAheadOfItsQueue, test_host_kv.test_a_step_that_is_queued_before_a_swap_still_counts),
    Defect(PlansNoRoomForTheSwapSpace, test_host_kv.test_the_plan_holds_the_host_blocks_that_were_asked_for),
    Defect(
        LosesTheLastSwappedBlock,
        test_host_kv.test_the_engine_swaps_where_copying_is_cheaper_and_nobody_can_tell,
    ),
    Defect(Leaks, test_memory.test_steps_allocate_no_memory_that_the_plan_does_not_hold),
    Defect(HoldsMoreThanPlanned, test_memory.test_the_plan_and_the_runner_agree_within_two_percent),
    Defect(
        PromisesBlocksThatAreNotThere,
        test_memory.test_a_plan_that_cannot_be_held_is_refused_with_both_numbers,
    ),
    Defect(ReportsNoProgress, test_memory.test_loading_reports_bytes_done_and_bytes_in_all),
    Defect(ClosesOnce, test_memory.test_close_may_be_called_twice_and_at_any_stage),
]


@pytest.mark.parametrize("defect", DEFECTS, ids=str)
def test_a_defect_is_found_where_a_sound_runner_passes(defect: Defect, hunt: Hunt) -> None:
    hunt(defect)
