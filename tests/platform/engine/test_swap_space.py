"""Who gets host blocks, when that pays, and which copies a step carries."""

from __future__ import annotations

import numpy as np
import pytest

from trivet.contract import Batch
from trivet.engine.sequence import Sequence
from trivet.engine.swap_space import SwapCosts, SwapSpace
from trivet.pooling_params import PoolingParams
from trivet.sampling_params import SamplingParams

SIZE = 4


def make_space(num_blocks: int = 8, copy_s: float = 0.0, compute_s: float = 1.0) -> SwapSpace:
    return SwapSpace(num_blocks, SIZE, 1, SwapCosts(copy_s, compute_s))


def computed(num_tokens: int, pooling: PoolingParams | None = None) -> Sequence:
    made = Sequence("r", [3] * (num_tokens + 1), SamplingParams(), pooling=pooling)
    made.num_computed_tokens = num_tokens
    return made


def table(*blocks: int) -> np.ndarray:
    return np.array([*blocks, 0, 0, 0], np.int32)


def carried(space: SwapSpace, step: int) -> list[tuple[str, list[list[int]]]]:
    return [("out" if c.to_host else "in", c.pairs.tolist()) for c in space.take_copies(step)]


def test_all_blocks_with_something_computed_go_out_and_come_back() -> None:
    space = make_space()
    sequence = computed(9)
    space.swap_out(sequence, table(5, 3, 7))
    assert (space.num_sequences, space.usage) == (1, 3 / 8)
    assert space.swap_in(sequence, table(1, 2, 4), num_cached_tokens=0) == 9
    assert carried(space, 1) == [("out", [[5, 0], [3, 1], [7, 2]]), ("in", [[0, 1], [1, 2], [2, 4]])]
    assert carried(space, 2) == []
    assert (space.num_sequences, space.usage, space.num_swaps) == (0, 0.0, 1)


def test_what_the_prefix_cache_still_has_is_not_copied_back() -> None:
    space = make_space()
    sequence = computed(9)
    space.swap_out(sequence, table(5, 3, 7))
    space.take_copies(1)
    assert space.swap_in(sequence, table(5, 3, 2), num_cached_tokens=8) == 9
    assert carried(space, 2) == [("in", [[2, 2]])]
    space.swap_out(sequence, table(5, 3, 7))
    space.take_copies(3)
    assert space.swap_in(sequence, table(5, 3, 2), num_cached_tokens=12) == 12
    assert carried(space, 4) == []


def test_a_sequence_that_was_not_swapped_has_what_is_cached() -> None:
    assert make_space().swap_in(computed(9), table(1), num_cached_tokens=4) == 4


@pytest.mark.parametrize(
    ("copy_s", "compute_s", "is_swapped"), [(1.0, 1.0, True), (1.6, 1.0, False), (0.0, 0.0, False)]
)
def test_the_cheaper_way_is_taken(copy_s: float, compute_s: float, is_swapped: bool) -> None:
    """Nine tokens in three blocks, each copied twice; what has not been measured counts as free."""
    space = make_space(copy_s=copy_s, compute_s=compute_s)
    space.swap_out(computed(9), table(1, 2, 3))
    assert space.num_sequences == is_swapped


def test_without_room_it_is_computed_again() -> None:
    space = make_space(num_blocks=4)
    space.swap_out(computed(9), table(1, 2, 3))
    space.swap_out(computed(8), table(4, 5))
    assert space.num_sequences == 1


def test_sums_over_hidden_states_start_over() -> None:
    space = make_space()
    space.swap_out(computed(9, PoolingParams(pooling="mean")), table(1, 2, 3))
    assert space.num_sequences == 0


def test_one_that_ends_gives_its_blocks_back() -> None:
    space = make_space()
    sequence = computed(9)
    space.swap_out(sequence, table(1, 2, 3))
    space.forget(sequence)
    space.forget(sequence)
    assert space.usage == 0
    assert space.swap_in(sequence, table(1, 2, 3), num_cached_tokens=0) == 0


def test_what_a_failed_step_should_have_carried_is_computed_again() -> None:
    space = make_space(num_blocks=20)
    early, late, next_one = computed(4), computed(4), computed(4)
    space.swap_out(early, table(1))
    space.take_copies(1)
    space.swap_out(late, table(2))
    space.take_copies(2)
    space.swap_out(next_one, table(3))
    space.withdraw(2)
    assert carried(space, 3) == []
    assert [space.swap_in(one, table(9), 0) for one in (early, late, next_one)] == [4, 0, 0]
    assert space.usage == 0


def batch(num_tokens: int, num_seqs: int) -> Batch:
    tokens, seqs = np.zeros(num_tokens, np.int32), np.zeros(num_seqs, np.int32)
    return Batch(1, seqs, seqs, seqs, (), tokens, tokens, seqs, seqs)


def test_computing_costs_what_steps_of_prompts_took() -> None:
    costs = SwapCosts(0.1)
    costs.observe(batch(100, 100), 50.0)
    costs.observe(batch(10, 1), 50.0)
    assert costs.compute_s_per_token == 0.0, "decodes and small steps say nothing"
    costs.observe(batch(100, 2), 10.0)
    assert costs.compute_s_per_token == pytest.approx(0.1)
    for _ in range(100):
        costs.observe(batch(100, 2), 30.0)
    assert costs.compute_s_per_token == pytest.approx(0.3, rel=0.01)
