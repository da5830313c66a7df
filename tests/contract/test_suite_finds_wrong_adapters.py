"""The suite finds what it is there to find: adapters gone wrong."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from trivet.contract import Batch
from trivet.contract_suite.cases import test_adapters
from trivet.contract_suite.defects import Defect, Hunt
from trivet.contract_suite.plain_runner import PlainRunner
from trivet.weights.index import WeightIndex

Int32 = NDArray[np.int32]


class IgnoresThem(PlainRunner):
    def adapters_of_tokens(self, batch: Batch) -> Int32:
        return np.zeros_like(super().adapters_of_tokens(batch))


class TakesTheFirstForAll(PlainRunner):
    def adapters_of_tokens(self, batch: Batch) -> Int32:
        slots = super().adapters_of_tokens(batch)
        return np.full_like(slots, slots.max(initial=0))


class ForgetsThemInDecodes(PlainRunner):
    def adapters_of_tokens(self, batch: Batch) -> Int32:
        lengths = np.diff(batch.query_start_loc)
        return super().adapters_of_tokens(batch) * (np.repeat(lengths, lengths) > 1)


class SortsThemOtherwise(PlainRunner):
    def adapters_of_tokens(self, batch: Batch) -> Int32:
        return super().adapters_of_tokens(batch)[::-1]


class HasNoScale(PlainRunner):
    def load_adapter(self, slot: int, weights: WeightIndex) -> None:
        super().load_adapter(slot, weights)
        for tensor in weights.tensors:
            self.adapters[slot][tensor.name] /= np.float32(tensor.scale)


class KeepsWhatWasUnloaded(PlainRunner):
    def unload_adapter(self, slot: int) -> None:
        pass


class TakesWhatIsNotFinite(PlainRunner):
    def load_adapter(self, slot: int, weights: WeightIndex) -> None:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(np, "isfinite", np.ones_like)
            super().load_adapter(slot, weights)


SCORES = test_adapters.test_scores_are_those_of_the_model_with_the_adapter_merged
BATCH = test_adapters.test_a_batch_of_all_adapters_and_none_gives_each_row_its_own
DEFECTS = [
    Defect(IgnoresThem, SCORES, (1,)),
    Defect(IgnoresThem, test_adapters.test_the_engine_never_shares_a_prefix_between_adapters),
    Defect(TakesTheFirstForAll, BATCH),
    Defect(TakesTheFirstForAll, test_adapters.test_rows_of_the_base_model_are_what_they_are_without_adapters),
    Defect(ForgetsThemInDecodes, BATCH),
    Defect(SortsThemOtherwise, BATCH),
    *(Defect(HasNoScale, SCORES, (slot,)) for slot in (1, 2, 3)),
    Defect(
        KeepsWhatWasUnloaded,
        test_adapters.test_a_slot_can_be_emptied_and_filled_anew_while_others_are_in_use,
    ),
    Defect(TakesWhatIsNotFinite, test_adapters.test_what_does_not_fit_a_slot_is_refused_and_leaves_it_empty),
]


@pytest.mark.parametrize("defect", DEFECTS, ids=str)
def test_a_defect_is_found_where_a_sound_runner_passes(defect: Defect, hunt: Hunt) -> None:
    hunt(defect)
