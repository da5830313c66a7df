"""The suite finds what it is there to find: isolation, randomness, sampling and scores gone wrong."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from trivet.contract import Batch, Sampling, StepOutput
from trivet.contract_suite.cases import (
    test_drafts,
    test_engine,
    test_isolation,
    test_randomness,
    test_sampling,
    test_scoring,
)
from trivet.contract_suite.defects import Defect, Hunt
from trivet.contract_suite.plain_runner import PlainRunner
from trivet.contract_suite.tiny_models import NAN_TOKEN

Float32 = NDArray[np.float32]

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

    Ignores.__name__ = f"Ignores_{'_'.join(columns)}"
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


COLUMN = test_sampling.test_a_draw_follows_its_columns
DEFECTS = [
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
]


@pytest.mark.parametrize("defect", DEFECTS, ids=str)
def test_a_defect_is_found_where_a_sound_runner_passes(defect: Defect, hunt: Hunt) -> None:
    hunt(defect)
