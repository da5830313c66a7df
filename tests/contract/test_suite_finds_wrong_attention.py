"""The suite finds what it is there to find: attention, order, slots and arrays gone wrong."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from numpy.typing import NDArray

from trivet.contract import Batch, Sampling, StepOutput
from trivet.contract_suite.cases import (
    test_arrays,
    test_attention,
    test_batching,
    test_models,
    test_order,
    test_scoring,
)
from trivet.contract_suite.defects import Defect, Hunt
from trivet.contract_suite.plain_runner import PlainRunner
from trivet.models.spec import Attention

Float32 = NDArray[np.float32]
Int32 = NDArray[np.int32]

# ---- attention ----


class ReadsBeforeItWrites(PlainRunner):
    """Token by token: each reads what stands there, then the next is written."""

    def attention(self, h: Float32, index: int, spec: Attention, batch: Batch) -> Float32:
        before = self.kv[index].copy()
        super().attention(h, index, spec, batch)
        after, self.kv[index] = self.kv[index], before
        self.write_kv = lambda *_: None  # type: ignore[method-assign]
        out = super().attention(h, index, spec, batch)
        del self.write_kv
        self.kv[index] = after
        return out


class MultipliesByZero(PlainRunner):
    """Whole blocks with a mask that is added, so that what stands behind is weighed with 0."""

    def gather(self, index: int, table: Int32, first: int, stop: int) -> tuple[Float32, Float32]:
        self.num_seen = stop - first
        whole = -(-stop // self.block_size) * self.block_size
        return super().gather(index, table, first, whole)

    def attend(self, q: Float32, k: Float32, v: Float32, spec: Attention) -> Float32:
        k = k.copy()
        k[self.num_seen :] = 0
        out = np.empty_like(q)
        group = spec.num_heads // spec.num_kv_heads
        for head in range(spec.num_heads):
            scores = k[:, head // group] @ q[head] * np.float32(spec.scale)
            scores[self.num_seen :] = -np.inf
            shares = np.exp(scores - scores.max())
            out[head] = (shares / shares.sum()) @ v[:, head // group]
        return out


class LooksPastTheEnd(PlainRunner):
    def gather(self, index: int, table: Int32, first: int, stop: int) -> tuple[Float32, Float32]:
        whole = -(-stop // self.block_size) * self.block_size
        return super().gather(index, table, first, whole)


class IgnoresPositions(PlainRunner):
    def rope_positions(self, batch: Batch) -> Int32:
        return np.zeros_like(batch.positions)


class StartsPositionsAnewInEachChunk(PlainRunner):
    def rope_positions(self, batch: Batch) -> Int32:
        starts = np.repeat(batch.query_start_loc[:-1], np.diff(batch.query_start_loc))
        return np.arange(len(batch.positions), dtype=np.int32) - starts


class SharesOneBlockTable(PlainRunner):
    def run_layers(self, batch: Batch) -> Float32:
        tables = tuple(np.tile(table[-1:], (len(table), 1)) for table in batch.block_tables)
        return super().run_layers(replace(batch, block_tables=tables))


class MixesUpHeads(PlainRunner):
    def attend(self, q: Float32, k: Float32, v: Float32, spec: Attention) -> Float32:
        order = np.arange(spec.num_heads).reshape(spec.num_kv_heads, -1).T.reshape(-1)
        return super().attend(q[order], k, v, spec)


class IgnoresTheWindow(PlainRunner):
    def read_kv(self, index: int, q: Float32, spec: Attention, batch: Batch) -> Float32:
        return super().read_kv(index, q, replace(spec, window=None), batch)


# ---- order, slots, arrays ----


class CopiesAfterTheForward(PlainRunner):
    def copy_blocks(self, batch: Batch) -> None:
        self.late = batch

    def run_layers(self, batch: Batch) -> Float32:
        hidden = super().run_layers(batch)
        super().copy_blocks(self.late)
        return hidden


class ForgetsCopiesOfEmptyBatches(PlainRunner):
    def copy_blocks(self, batch: Batch) -> None:
        if len(batch.slots):
            super().copy_blocks(batch)


class KeepsNewestTokensByPlace(PlainRunner):
    def keep_newest(self, batch: Batch, sampling: Sampling, output: StepOutput) -> None:
        super().keep_newest(replace(batch, slots=np.arange(len(batch.slots))), sampling, output)


class LeavesTheSlotToItsOldToken(PlainRunner):
    """A prefill's token is not kept, so that a new owner goes on from the last one's."""

    def keep_newest(self, batch: Batch, sampling: Sampling, output: StepOutput) -> None:
        is_decode = np.diff(batch.query_start_loc) == 1
        super().keep_newest(batch, sampling, replace(output, num_tokens=output.num_tokens * is_decode))


class KeepsTheLastRowInsteadOfTheLastThatCounts(PlainRunner):
    def keep_newest(self, batch: Batch, sampling: Sampling, output: StepOutput) -> None:
        drawing = np.bincount(batch.row_seqs[sampling.draws], minlength=len(batch.slots))
        super().keep_newest(batch, sampling, replace(output, num_tokens=drawing.astype(np.int32)))


class CountsScoringRows(PlainRunner):
    def collect(self, step: int) -> StepOutput:
        batch = self.queue[0].batch
        counts = np.bincount(batch.row_seqs, minlength=len(batch.slots)).astype(np.int32)
        return replace(super().collect(step), num_tokens=counts)


class WritesToTheArrays(PlainRunner):
    def draw(self, logits: Float32, sampling: Sampling, batch: Batch) -> StepOutput:
        output = super().draw(logits, sampling, batch)
        sampling.uniform[:] = 0
        return output


class ReadsArraysTooLate(PlainRunner):
    """Notes a step's newest tokens when the next one begins."""

    late: tuple[Batch, StepOutput] | None = None

    def keep_newest(self, batch: Batch, sampling: Sampling, output: StepOutput) -> None:
        self.late = (batch, output)

    def token_ids(self, batch: Batch) -> Int32:
        if self.late:
            self.newest[self.late[0].slots] = self.late[1].token_ids
        return super().token_ids(batch)


class ReusesItsResult(PlainRunner):
    mine: Float32 | None = None

    def draw(self, logits: Float32, sampling: Sampling, batch: Batch) -> StepOutput:
        output = super().draw(logits, sampling, batch)
        if self.mine is None or len(self.mine) != len(output.logprobs):
            self.mine = output.logprobs
        self.mine[:] = output.logprobs
        return replace(output, logprobs=self.mine)


DEFECTS = [
    Defect(ReadsBeforeItWrites, test_attention.test_chunks_of_every_size_equal_the_whole),
    Defect(MultipliesByZero, test_attention.test_slots_behind_a_sequence_may_hold_nan),
    Defect(LooksPastTheEnd, test_attention.test_stale_keys_and_values_behind_a_sequence_are_not_seen),
    Defect(
        IgnoresPositions, test_models.test_an_architecture_computes_what_transformers_computes, ("llama",)
    ),
    Defect(StartsPositionsAnewInEachChunk, test_attention.test_chunks_of_every_size_equal_the_whole),
    Defect(SharesOneBlockTable, test_batching.test_sequences_may_join_at_every_step),
    Defect(MixesUpHeads, test_models.test_an_architecture_computes_what_transformers_computes, ("llama",)),
    Defect(
        IgnoresTheWindow,
        test_models.test_an_architecture_computes_what_transformers_computes,
        ("mistral-window",),
    ),
    Defect(CopiesAfterTheForward, test_order.test_block_copies_come_before_the_forward_of_their_batch),
    Defect(ForgetsCopiesOfEmptyBatches, test_order.test_a_batch_of_copies_alone_is_carried_out),
    Defect(KeepsNewestTokensByPlace, test_order.test_the_newest_token_of_a_slot_is_read_on_the_device),
    Defect(
        KeepsTheLastRowInsteadOfTheLastThatCounts,
        test_order.test_a_slots_newest_token_is_the_last_that_counted_also_after_drafts,
    ),
    Defect(
        LeavesTheSlotToItsOldToken,
        test_order.test_a_slot_may_be_given_away_while_its_last_step_is_under_way,
    ),
    Defect(
        CountsScoringRows,
        test_scoring.test_scoring_rows_draw_nothing_and_disturb_no_drawing_row,
    ),
    Defect(WritesToTheArrays, test_arrays.test_a_runner_never_writes_to_the_arrays_of_a_step),
    Defect(
        ReadsArraysTooLate,
        test_arrays.test_a_runner_needs_no_array_of_a_step_once_its_collect_has_returned,
    ),
    Defect(ReusesItsResult, test_arrays.test_a_result_belongs_to_the_caller),
]


@pytest.mark.parametrize("defect", DEFECTS, ids=str)
def test_a_defect_is_found_where_a_sound_runner_passes(defect: Defect, hunt: Hunt) -> None:
    hunt(defect)
