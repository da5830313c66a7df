"""The suite finds what it is there to find: each defect, put into a runner that passes, fails a case."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from trivet.contract import Batch, MemoryPlan, Runner, RunnerConfig, Sampling, StepOutput
from trivet.contract_suite.cases import (
    test_arrays,
    test_attention,
    test_batching,
    test_drafts,
    test_engine,
    test_isolation,
    test_memory,
    test_models,
    test_order,
    test_randomness,
    test_sampling,
    test_scoring,
)
from trivet.contract_suite.plain_runner import PlainBackend, PlainRunner
from trivet.contract_suite.subject import ModelLibrary, Subject, find_candidates
from trivet.contract_suite.tiny_models import NAN_TOKEN
from trivet.errors import TrivetError
from trivet.models.spec import Attention, ModelSpec
from trivet.weights.index import WeightIndex

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


class ScoringMovesTheNewestToken(PlainRunner):
    def draw(self, logits: Float32, sampling: Sampling, batch: Batch) -> StepOutput:
        output = super().draw(logits, sampling, batch)
        return replace(
            output, num_tokens=np.bincount(batch.row_seqs, minlength=len(batch.slots)).astype(np.int32)
        )


class WritesToTheArrays(PlainRunner):
    def draw(self, logits: Float32, sampling: Sampling, batch: Batch) -> StepOutput:
        output = super().draw(logits, sampling, batch)
        sampling.uniform[:] = 0
        return output


class ReadsArraysTooLate(PlainRunner):
    """Finishes a step's KV while the next one runs."""

    previous: tuple[int, Float32, Float32, Batch] | None = None

    def write_kv(self, index: int, k: Float32, v: Float32, batch: Batch) -> None:
        super().write_kv(index, k, v, batch)
        if index == 0:
            if self.previous and self.previous[3] is not batch:
                super().write_kv(*self.previous)
            self.previous = (index, k, v, batch)


class ReusesItsResult(PlainRunner):
    mine: Float32 | None = None

    def draw(self, logits: Float32, sampling: Sampling, batch: Batch) -> StepOutput:
        output = super().draw(logits, sampling, batch)
        if self.mine is None or len(self.mine) != len(output.logprobs):
            self.mine = output.logprobs
        self.mine[:] = output.logprobs
        return replace(output, logprobs=self.mine)


# ---- isolation and randomness ----


class SpreadsNaN(PlainRunner):
    def draw(self, logits: Float32, sampling: Sampling, batch: Batch) -> StepOutput:
        output = super().draw(logits, sampling, batch)
        return replace(output, is_finite=np.full_like(output.is_finite, output.is_finite.all()))


class HidesNaN(PlainRunner):
    def draw(self, logits: Float32, sampling: Sampling, batch: Batch) -> StepOutput:
        output = super().draw(logits, sampling, batch)
        return replace(output, is_finite=np.ones_like(output.is_finite))


class OwnsAGenerator(PlainRunner):
    def draw(self, logits: Float32, sampling: Sampling, batch: Batch) -> StepOutput:
        own = np.random.default_rng(batch.step).random(sampling.uniform.shape, np.float32)
        return super().draw(logits, replace(sampling, uniform=own), batch)


class BorrowsAGenerator(PlainRunner):
    def draw(self, logits: Float32, sampling: Sampling, batch: Batch) -> StepOutput:
        np.random.random()  # advances the process's own
        return super().draw(logits, sampling, batch)


class DrawsByPlace(PlainRunner):
    def draw(self, logits: Float32, sampling: Sampling, batch: Batch) -> StepOutput:
        moved = (sampling.uniform + 0.13 * np.arange(len(sampling.uniform))[:, None]) % 1
        return super().draw(logits, replace(sampling, uniform=moved.astype(np.float32)), batch)


class DrawsInOrderOfLikelihood(PlainRunner):
    def draw(self, logits: Float32, sampling: Sampling, batch: Batch) -> StepOutput:
        output = super().draw(logits, sampling, batch)
        for row in np.flatnonzero(sampling.draws & (sampling.temperature > 0)):
            order = np.argsort(-logits[row], kind="stable")
            sorted_rows = replace(sampling, uniform=sampling.uniform[row : row + 1])
            one = _row(sorted_rows, row)
            drawn = super().draw(logits[row : row + 1, order], one, _batch_of_one(batch))
            output.token_ids[row] = order[drawn.token_ids[0]]
        return output


def _row(sampling: Sampling, row: int) -> Sampling:
    columns = ("draws", "target_ids", "temperature", "top_k", "top_p", "min_p")
    return Sampling(
        **{name: getattr(sampling, name)[row : row + 1] for name in columns}, uniform=sampling.uniform
    )


def _batch_of_one(batch: Batch) -> Batch:
    return replace(batch, slots=batch.slots[:1], row_seqs=np.zeros(1, np.int32))


# ---- sampling and scoring ----


def ignoring(**columns: Any) -> type[PlainRunner]:
    """A runner to which some columns always have the same value."""

    class Ignores(PlainRunner):
        def draw(self, logits: Float32, sampling: Sampling, batch: Batch) -> StepOutput:
            constant = {
                name: value if value is None else np.full_like(getattr(sampling, name), value)
                for name, value in columns.items()
            }
            return super().draw(logits, replace(sampling, **constant), batch)

    return Ignores


class TakesEveryDraft(PlainRunner):
    def draw(self, logits: Float32, sampling: Sampling, batch: Batch) -> StepOutput:
        output = super().draw(logits, sampling, batch)
        drafts = sampling.draws & (sampling.target_ids >= 0)
        output.token_ids[drafts] = sampling.target_ids[drafts]
        drawing = np.bincount(batch.row_seqs[sampling.draws], minlength=len(batch.slots))
        return replace(output, num_tokens=drawing.astype(np.int32))


class DrawsARefusedDraftAgain(PlainRunner):
    """From p instead of p without the draft."""

    def draw(self, logits: Float32, sampling: Sampling, batch: Batch) -> StepOutput:
        output = super().draw(logits, sampling, batch)
        free = super().draw(
            logits, replace(sampling, target_ids=np.full_like(sampling.target_ids, -1)), batch
        )
        refused = sampling.draws & (sampling.target_ids >= 0) & (output.token_ids != sampling.target_ids)
        output.token_ids[refused] = free.token_ids[refused]
        return output


class TakesTheHighestOfEquals(PlainRunner):
    def draw(self, logits: Float32, sampling: Sampling, batch: Batch) -> StepOutput:
        output = super().draw(logits, sampling, batch)
        if sampling.edit_ids is not None:
            output.token_ids[:] = sampling.edit_ids.max()
        return output


class ReportsTemperedLogprobs(PlainRunner):
    def draw(self, logits: Float32, sampling: Sampling, batch: Batch) -> StepOutput:
        output = super().draw(logits, sampling, batch)
        heat = np.where(sampling.temperature > 0, sampling.temperature, 1)[:, None]
        return replace(output, logprobs=super().draw(logits / heat, sampling, batch).logprobs)


class CountsRanksFromZero(PlainRunner):
    def draw(self, logits: Float32, sampling: Sampling, batch: Batch) -> StepOutput:
        output = super().draw(logits, sampling, batch)
        return replace(output, ranks=output.ranks - 1)


class ForgetsRowsBeyondTheWorkspace(PlainRunner):
    def head(self, hidden: Float32) -> Float32:
        logits = super().head(hidden)
        logits[7:] = logits[:7].mean(axis=0)
        return logits


class DrawsPaddingRows(PlainRunner):
    def head(self, hidden: Float32) -> Float32:
        logits: Float32 = hidden @ self.weights["head.weight"].T
        return logits


class IsSlightlyWrong(PlainRunner):
    """One norm forgets its epsilon's place: 1 % of error, in every token."""

    def head(self, hidden: Float32) -> Float32:
        return super().head(hidden) * np.float32(1.01)


# ---- memory ----


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
    def close(self) -> None:
        del self.weights


@dataclass(frozen=True)
class Defect:
    """A wrong runner and the case that has to find it."""

    runner: type[PlainRunner]
    case: Callable[..., None]
    arguments: tuple[Any, ...] = ()

    @property
    def name(self) -> str:
        return f"{self.runner.__name__}-{self.case.__name__}"


COLUMN = test_sampling.test_a_draw_follows_its_columns
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
        ScoringMovesTheNewestToken,
        test_scoring.test_scoring_rows_draw_nothing_and_disturb_no_drawing_row,
    ),
    Defect(WritesToTheArrays, test_arrays.test_a_runner_never_writes_to_the_arrays_of_a_step),
    Defect(
        ReadsArraysTooLate,
        test_arrays.test_a_runner_needs_no_array_of_a_step_once_its_collect_has_returned,
    ),
    Defect(ReusesItsResult, test_arrays.test_a_result_belongs_to_the_caller),
    Defect(SpreadsNaN, test_isolation.test_nan_in_one_sequence_shows_in_its_own_rows_only, (NAN_TOKEN,)),
    Defect(HidesNaN, test_isolation.test_nan_in_one_sequence_shows_in_its_own_rows_only, (NAN_TOKEN,)),
    Defect(SpreadsNaN, test_engine.test_nan_ends_its_own_request_and_no_other),
    Defect(
        OwnsAGenerator,
        test_randomness.test_a_retry_draws_the_same_token_whatever_the_generators_of_the_process_say,
    ),
    Defect(BorrowsAGenerator, test_randomness.test_drawing_leaves_the_generators_of_the_process_alone),
    Defect(
        DrawsByPlace,
        test_randomness.test_a_row_draws_the_same_token_alone_and_in_any_place_of_a_batch,
    ),
    Defect(
        DrawsInOrderOfLikelihood,
        test_randomness.test_the_token_is_the_first_whose_cumulative_probability_exceeds_uniform,
    ),
    Defect(ignoring(mask_rows=None, mask_bits=None), COLUMN, ("mask",)),
    Defect(ignoring(edit_start=None, edit_ids=None, edit_mul=None, edit_add=None), COLUMN, ("edits",)),
    Defect(
        ignoring(edit_mul=1),
        test_sampling.test_an_edit_by_a_factor_shrinks_positive_logits_and_grows_negative_ones,
    ),
    Defect(ignoring(top_k=0), COLUMN, ("top_k",)),
    Defect(ignoring(top_p=1), COLUMN, ("top_p",)),
    Defect(ignoring(min_p=0), COLUMN, ("min_p",)),
    Defect(ignoring(temperature=1), COLUMN, ("temperature_low",)),
    Defect(ignoring(top_k=0), COLUMN, ("top_k_then_top_p",)),
    Defect(TakesEveryDraft, test_drafts.test_greedy_drafts_count_up_to_the_first_wrong_one, (1,)),
    Defect(TakesEveryDraft, test_drafts.test_a_sampled_draft_is_taken_with_its_own_probability),
    Defect(DrawsARefusedDraftAgain, test_drafts.test_a_refused_draft_is_replaced_by_a_draw_from_what_is_left),
    Defect(TakesTheHighestOfEquals, test_sampling.test_the_lowest_id_wins_among_equals),
    Defect(ReportsTemperedLogprobs, test_scoring.test_logprobs_are_raw_whatever_the_sampling_is),
    Defect(CountsRanksFromZero, test_scoring.test_ranks_count_the_tokens_that_are_more_likely),
    Defect(
        ForgetsRowsBeyondTheWorkspace,
        test_scoring.test_more_rows_than_the_logits_workspace_are_done_in_pieces,
        (7,),
    ),
    Defect(DrawsPaddingRows, test_engine.test_rows_of_the_head_without_a_token_are_never_drawn),
    Defect(IsSlightlyWrong, test_scoring.test_teacher_forced_logprobs_agree_with_the_oracle),
    Defect(Leaks, test_memory.test_steps_allocate_no_memory_that_the_plan_does_not_hold),
    Defect(HoldsMoreThanPlanned, test_memory.test_the_plan_and_the_runner_agree_within_two_percent),
    Defect(
        PromisesBlocksThatAreNotThere,
        test_memory.test_a_plan_that_cannot_be_held_is_refused_with_both_numbers,
    ),
    Defect(ReportsNoProgress, test_memory.test_loading_reports_bytes_done_and_bytes_in_all),
    Defect(ClosesOnce, test_memory.test_close_may_be_called_twice_and_at_any_stage),
]


class BackendOf(PlainBackend):
    """The plain backend with another runner."""

    def __init__(self, runner: type[PlainRunner]) -> None:
        self.runner = runner

    def create_runner(
        self, spec: ModelSpec, config: RunnerConfig, plan: MemoryPlan, devices: Sequence[Any]
    ) -> Runner:
        return self.runner(spec, config, plan)


def subject_of(runner: type[PlainRunner], models: ModelLibrary) -> Subject:
    (candidate,) = find_candidates({"plain": BackendOf(runner)})
    return Subject(candidate, models)


@pytest.fixture(scope="module")
def sound(models: ModelLibrary) -> Iterator[Subject]:
    subject = subject_of(PlainRunner, models)
    yield subject
    subject.close()


@pytest.mark.parametrize("defect", DEFECTS, ids=lambda defect: defect.name)
def test_a_defect_is_found_where_a_sound_runner_passes(
    defect: Defect, sound: Subject, models: ModelLibrary
) -> None:
    defect.case(sound, *defect.arguments)
    subject = subject_of(defect.runner, models)
    errors = (AssertionError, TrivetError, ValueError, IndexError, AttributeError, pytest.fail.Exception)
    with pytest.raises(errors):
        defect.case(subject, *defect.arguments)
