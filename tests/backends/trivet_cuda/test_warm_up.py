"""The step whose memory is measured is the fullest that can come."""

from __future__ import annotations

import numpy as np
import pytest

from trivet_cuda.warm_up import fullest_lengths, warm_up_step


@pytest.mark.parametrize(
    ("tokens", "model_len", "seqs", "lengths"),
    [
        (8, 100, 1, (8,)),
        (8, 100, 4, (1, 1, 1, 5)),
        (250, 100, 3, (83, 83, 84)),
        (250, 100, 5, (1, 1, 82, 83, 83)),
        (300, 100, 2, (100, 100)),  # no more fit into two sequences
        (2, 100, 4, (1, 1)),
        (4096, 1 << 17, 256, (*(1,) * 255, 3841)),
    ],
)
def test_a_step_is_as_full_as_the_budget_and_the_sequences_let_it(
    tokens: int, model_len: int, seqs: int, lengths: tuple[int, ...]
) -> None:
    found = fullest_lengths(tokens, model_len, seqs)
    assert found == lengths
    assert found == tuple(sorted(found))


def test_new_tokens_come_behind_those_in_kv() -> None:
    step = warm_up_step((1, 3), 16, num_cached=30)
    assert step.block_tables[0].tolist() == [[1, 2, 3]] * 2
    assert step.seq_lens.tolist() == [31, 33]
    assert step.positions.tolist() == [30, 30, 31, 32]


def test_its_sequences_share_the_blocks_that_every_plan_has() -> None:
    step = warm_up_step((1, 20, 33), 16)
    assert step.block_tables[0].tolist() == [[1, 2, 3]] * 3
    assert step.query_start_loc.tolist() == [0, 1, 21, 54]
    assert step.seq_lens.tolist() == [1, 20, 33]
    assert step.logits_rows.tolist() == [0, 20, 53]
    assert step.positions.tolist() == [0, *range(20), *range(33)]
    assert step.token_ids.dtype == step.positions.dtype == np.int32
