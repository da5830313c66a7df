"""The suite finds what it is there to find: pooled hidden states gone wrong."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from trivet.contract import Batch, PoolKind
from trivet.contract_suite.cases import test_pooling
from trivet.contract_suite.defects import Defect, Hunt
from trivet.contract_suite.plain_runner import PlainRunner

Float32 = NDArray[np.float32]


class PoolsBeforeTheNorm(PlainRunner):
    def pool(self, hidden: Float32, batch: Batch) -> Float32 | None:
        return super().pool(hidden / self.weights["norm.weight"], batch)


class TakesTheFirst(PlainRunner):
    def pool(self, hidden: Float32, batch: Batch) -> Float32 | None:
        pooled = super().pool(hidden, batch)
        if pooled is not None:
            firsts = batch.query_start_loc[:-1]
            pooled = np.where(batch.pooling[:, None] == PoolKind.LAST, hidden[firsts], pooled)  # type: ignore[index]
        return pooled


class Averages(PlainRunner):
    def pool(self, hidden: Float32, batch: Batch) -> Float32 | None:
        pooled = super().pool(hidden, batch)
        return None if pooled is None else pooled / np.diff(batch.query_start_loc)[:, None]


class SumsTheBatch(PlainRunner):
    def pool(self, hidden: Float32, batch: Batch) -> Float32 | None:
        pooled = super().pool(hidden, batch)
        if pooled is not None:
            pooled[batch.pooling == PoolKind.SUM] = hidden.sum(axis=0)
        return pooled


class AlwaysPools(PlainRunner):
    def pool(self, hidden: Float32, batch: Batch) -> Float32 | None:
        return np.zeros((len(batch.slots), hidden.shape[1]), np.float32)


LENGTHS = test_pooling.test_pooled_states_of_every_length_and_kind_agree_with_the_oracle
CHUNKS = test_pooling.test_the_sums_of_chunks_add_up_and_the_last_chunk_has_the_last
DEFECTS = [
    Defect(PoolsBeforeTheNorm, LENGTHS, ("llama",)),
    Defect(TakesTheFirst, LENGTHS, ("llama",)),
    Defect(Averages, CHUNKS, (7,)),
    Defect(SumsTheBatch, LENGTHS, ("llama",)),
    Defect(SumsTheBatch, test_pooling.test_a_sequence_that_is_not_finite_spoils_only_its_own_vector),
    Defect(AlwaysPools, test_pooling.test_a_batch_without_pooling_returns_none_of_it),
]


@pytest.mark.parametrize("defect", DEFECTS, ids=str)
def test_a_defect_is_found_where_a_sound_runner_passes(defect: Defect, hunt: Hunt) -> None:
    hunt(defect)
