"""The newest token of each slot, and what a step gives that has not been sampled."""

from __future__ import annotations

import numpy as np
import pytest

from trivet.contract import ON_DEVICE, Batch, Sampling, StepOutput
from trivet.errors import BackendError, OutOfMemory
from trivet.runners.step_state import NewestTokens, StepState, warm_up_batch


def int32(*values: int) -> np.ndarray[tuple[int], np.dtype[np.int32]]:
    return np.array(values, np.int32)


def batch(slots: list[int], token_ids: list[int], starts: list[int], row_seqs: list[int]) -> Batch:
    return Batch(
        step=1,
        slots=int32(*slots),
        query_start_loc=int32(*starts),
        seq_lens=int32(*[9] * len(slots)),
        block_tables=(np.ones((len(slots), 1), np.int32),),
        token_ids=int32(*token_ids),
        positions=int32(*range(len(token_ids))),
        logits_rows=int32(*range(len(row_seqs))),
        row_seqs=int32(*row_seqs),
    )


def drawn(token_ids: list[int], num_tokens: list[int], draws: list[bool]) -> tuple[Sampling, StepOutput]:
    count = len(token_ids)
    ones, none = np.ones(count, np.float32), int32(*[-1] * count)
    zeros = np.zeros((count, 2), np.float32)
    sampling = Sampling(np.array(draws), none, ones, none, ones, ones, zeros)
    output = StepOutput(
        1, int32(*token_ids), int32(*num_tokens), np.ones(count, bool), ones, none, *[None] * 4, 0.0
    )
    return sampling, output


def test_unseen_tokens_are_those_drawn_last_for_their_slot() -> None:
    newest = NewestTokens(4)
    newest.keep(batch([3, 1], [5, 6], [0, 1, 2], [0, 1]), *drawn([70, 71], [1, 1], [True, True]))
    following = batch([1, 3], [ON_DEVICE, 8, ON_DEVICE], [0, 1, 3], [0, 1])
    assert newest.resolved(following).tolist() == [71, 8, 70]


def test_of_several_rows_the_last_that_counts_is_kept() -> None:
    """Slot 2 draws three rows of which two count; slot 0 only scores."""
    newest = NewestTokens(3)
    sampling, output = drawn([9, 40, 41, 42], [0, 2], [False, True, True, True])
    newest.keep(batch([0, 2], [1, 2, 3, 4], [0, 1, 4], [0, 1, 1, 1]), sampling, output)
    assert newest.resolved(batch([2, 0], [ON_DEVICE, ON_DEVICE], [0, 1, 2], [0, 1])).tolist() == [41, 0]


def test_a_step_that_was_not_sampled_or_ran_out_of_memory_gives_nothing() -> None:
    state = StepState(batch([0], [1], [0, 1], [0]), 0.0)
    with pytest.raises(BackendError, match=r"collect\(1\) was called before sample\(1\)"):
        state.result()
    state.failure = OutOfMemory("no memory")
    with pytest.raises(OutOfMemory):
        state.result()


@pytest.mark.parametrize(("length", "blocks"), [(1, [1]), (16, [1]), (33, [1, 2, 3])])
def test_a_warm_up_stays_out_of_scratch(length: int, blocks: list[int]) -> None:
    """Every token has a slot of its own: some devices refuse two writes to one."""
    made = warm_up_batch(length, 16)
    assert made.block_tables[0].tolist() == [blocks]
    assert made.logits_rows.tolist() == [length - 1]
