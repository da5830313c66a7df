"""The step whose memory is measured is the fullest that can come."""

from __future__ import annotations

import numpy as np
import pytest

from trivet.contract import KVCacheSpec, KVGroup, KVKind, MemoryPlan
from trivet.engine.sampler import sample_pieces
from trivet.runners.warm_up import (
    edited,
    fullest_lengths,
    warm_up_sampling,
    warm_up_step,
    warm_up_steps,
)


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
    assert step.block_tables[0].tolist() == [[1, 2, 0], [1, 2, 3]]
    assert step.seq_lens.tolist() == [31, 33]
    assert step.positions.tolist() == [30, 30, 31, 32]


def test_its_sequences_share_the_blocks_that_every_plan_has() -> None:
    step = warm_up_step((1, 20, 33), 16)
    assert step.block_tables[0].tolist() == [[1, 0, 0], [1, 2, 0], [1, 2, 3]]
    assert step.query_start_loc.tolist() == [0, 1, 21, 54]
    assert step.seq_lens.tolist() == [1, 20, 33]
    assert step.logits_rows.tolist() == [0, 20, 53]
    assert step.positions.tolist() == [0, *range(20), *range(33)]
    assert step.token_ids.dtype == step.positions.dtype == np.int32


def test_apart_every_token_has_a_slot_of_its_own() -> None:
    step = warm_up_step((1, 1, 20, 33), 16, num_blocks=20)
    tables = step.block_tables[0].tolist()
    assert tables == [[1, 0, 0], [2, 0, 0], [3, 4, 0], [5, 6, 7]]
    rows = np.repeat(np.arange(4), np.diff(step.query_start_loc))
    slots = step.block_tables[0][rows, step.positions // 16] * 16 + step.positions % 16
    assert len(set(slots.tolist())) == len(slots) == 55
    assert slots.min() >= 16, "block 0 is scratch"


@pytest.mark.parametrize(
    ("num_blocks", "lengths"), [(4, [16, 33]), (3, [33]), (2, [32]), (6, [1, 20, 33]), (7, [1, 1, 20, 33])]
)
def test_where_blocks_are_too_few_the_longest_come_first(num_blocks: int, lengths: list[int]) -> None:
    step = warm_up_step((1, 1, 20, 33), 16, num_blocks=num_blocks)
    assert np.diff(step.query_start_loc).tolist() == lengths
    assert step.block_tables[0].max() <= num_blocks


@pytest.mark.parametrize("apart", [False, True])
def test_the_longest_context_is_among_the_steps_of_a_plan(apart: bool) -> None:
    kv = KVCacheSpec(block_size=16, groups=(KVGroup(KVKind.FULL, (0,), "bf16", 64),))
    plan = MemoryPlan(kv, (41,), 0, (), max_num_batched_tokens=96, max_model_len=200)
    fullest, chunk, token = warm_up_steps(plan, 8, apart=apart)
    assert np.diff(fullest.query_start_loc).tolist() == [1] * 7 + [89]
    assert (len(chunk.token_ids), chunk.seq_lens.tolist()) == (96, [200])
    assert (len(token.token_ids), token.seq_lens.tolist()) == (1, [200])
    assert max(step.block_tables[0].max() for step in (fullest, chunk, token)) < 41


def test_an_edited_draw_is_one_that_the_reference_takes() -> None:
    """Half of the tokens are forbidden by the mask."""
    sampling = edited(warm_up_sampling(3, 100), 100)
    logits = np.random.default_rng(1).normal(size=(3, 100)).astype(np.float32)
    logits[:, 1] = 50.0
    output = sample_pieces(iter([logits]), sampling, np.arange(3, dtype=np.int32), 3, 0)
    assert (output.token_ids % 2 == 0).all()
    assert sampling.edit_start is not None
    assert sampling.edit_start.tolist() == [0, 100, 200, 300]
