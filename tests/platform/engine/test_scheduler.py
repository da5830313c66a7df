"""What a step holds: budget, order, chunks, shared prefixes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from trivet.engine.sequence import SequenceState
from trivet.engine.swap_space import SwapCosts, SwapSpace
from trivet.engine.waiting_queue import AGEING_S

WorldFactory = Callable[..., Any]


def test_nothing_to_do_is_an_empty_step(make_world: WorldFactory) -> None:
    assert make_world().scheduler.schedule() == []


def test_a_long_prompt_is_computed_in_chunks_and_draws_with_its_last(make_world: WorldFactory) -> None:
    world = make_world(budget=16)
    world.add(40)
    steps = [world.submit() for _ in range(3)]
    assert [(part.start, part.num_tokens, part.draws) for (part,) in steps] == [
        (0, 16, False),
        (16, 16, False),
        (32, 8, True),
    ]


def test_decodes_come_first_and_prompts_get_what_is_left(make_world: WorldFactory) -> None:
    world = make_world(budget=16)
    first, second = world.add(8), world.add(6)
    world.step()
    long = world.add(40)
    assert world.step() == {first: 1, second: 1, long: 14}
    short = world.add(3)
    assert world.step() == {first: 1, second: 1, long: 14}
    assert world.step() == {first: 1, second: 1, long: 12, short: 2}
    assert world.step() == {first: 1, second: 1, long: 1, short: 1}


def test_a_step_is_sorted_by_query_length(make_world: WorldFactory) -> None:
    world = make_world(budget=30)
    world.add(9)
    world.step()
    for length in (12, 3, 7):
        world.add(length)
    assert [part.num_tokens for part in world.submit()] == [1, 3, 7, 12]


def test_no_more_sequences_run_than_there_are_slots(make_world: WorldFactory) -> None:
    world = make_world(max_num_seqs=3, budget=100)
    sequences = [world.add(5, max_tokens=3) for _ in range(5)]
    assert list(world.step()) == sequences[:3]
    assert len({sequence.slot for sequence in sequences[:3]}) == 3
    world.step()
    assert list(world.step()) == sequences[:3]
    assert list(world.step()) == sequences[3:]


def test_urgent_ones_are_admitted_first_and_equals_in_order_of_arrival(make_world: WorldFactory) -> None:
    world = make_world(max_num_seqs=1, budget=100)
    waiting = [world.add(5, max_tokens=1, priority=priority) for priority in (2, 1, 0, 1)]
    admitted = [next(iter(world.step())) for _ in range(4)]
    assert admitted == [waiting[2], waiting[1], waiting[3], waiting[0]]


def test_waiting_makes_more_urgent(make_world: WorldFactory) -> None:
    world = make_world(max_num_seqs=1, budget=100)
    patient = world.add(5, max_tokens=1, priority=1)
    world.clock.now_s += AGEING_S
    urgent = world.add(5, max_tokens=1, priority=0)
    assert list(world.step()) == [patient]
    assert list(world.step()) == [urgent]


def test_a_head_without_room_is_not_overtaken(make_world: WorldFactory) -> None:
    world = make_world(num_blocks=11, budget=100)
    running = world.add(30)
    world.step()
    world.add(20)
    small = world.add(2)
    world.step()
    assert small.state is SequenceState.WAITING
    world.scheduler.finish(running)
    assert len(world.step()) == 2


# ---- prefix cache ----


def test_a_wave_with_one_prompt_computes_it_once(make_world: WorldFactory) -> None:
    world = make_world(budget=64)
    prompt = world.unique_tokens(42)
    wave = [world.add([*prompt, index], max_tokens=3) for index in range(6)]
    computed = 0
    while any(sequence.state is not SequenceState.FINISHED for sequence in wave):
        computed += sum(got for got in world.step().values())
    assert computed <= 43 + 5 * (43 - 40) + 6 * 3
    assert [sequence.num_cached_tokens for sequence in wave] == [0, 40, 40, 40, 40, 40]
    assert (world.scheduler.prefix_queries, world.scheduler.prefix_hits) == (6 * 43, 5 * 40)


def test_the_wave_waits_while_the_prompt_comes_in_chunks(make_world: WorldFactory) -> None:
    world = make_world(budget=16)
    prompt = world.unique_tokens(60)
    first, second = world.add([*prompt, 1]), world.add([*prompt, 2])
    for _ in range(3):
        assert list(world.step()) == [first]
    assert world.step() == {first: 13}
    assert world.step() == {first: 1, second: 1}
    assert second.num_cached_tokens == 60


def test_an_unrelated_prompt_does_not_wait(make_world: WorldFactory) -> None:
    world = make_world(budget=64)
    world.add(20)
    world.add(20)
    assert len(world.step()) == 2


def test_a_prompt_can_be_hit_from_the_step_after_its_submission_on(make_world: WorldFactory) -> None:
    world = make_world(budget=64)
    prompt = world.unique_tokens(20)
    world.add([*prompt, 1])
    world.submit()  # not collected
    second = world.add([*prompt, 2])
    assert second in {part.sequence for part in world.submit()}
    assert second.num_cached_tokens == 20


def test_a_step_that_is_taken_back_leaves_nothing_behind(make_world: WorldFactory) -> None:
    world = make_world(budget=64)
    prompt = world.unique_tokens(20)
    done = world.add(9, max_tokens=2)
    world.step()
    first, second = world.add([*prompt, 1]), world.add([*prompt, 2])
    steps = [world.submit(), world.submit()]
    assert second.num_cached_tokens == 20
    for step in steps:
        world.scheduler.take_back(step)
    world.pool.check_integrity()
    assert world.pool.usage == 0
    assert world.pool.find(first.block_keys) == []
    assert [sequence.num_pending_tokens for sequence in (done, first, second)] == [0, 0, 0]
    assert world.scheduler.running == []
    assert world.scheduler.waiting.head() is done
    assert world.pool.find(done.block_keys) != [], "earlier steps keep what they filled"
    while world.scheduler.waiting or world.scheduler.running:
        world.step()


# ---- cost ----


@pytest.mark.parametrize("num_keys", [1, 5])
@pytest.mark.parametrize("is_blocked", [False, True])
def test_the_length_of_the_queue_costs_nothing(
    make_world: WorldFactory,
    count_calls: Callable[[Callable[[], object]], int],
    is_blocked: bool,
    num_keys: int,
) -> None:
    """Counted in function calls, because timings are no verdict."""

    def num_calls(num_waiting: int) -> int:
        world = make_world(num_blocks=40, max_num_seqs=4 if is_blocked else 8, budget=24)
        for _ in range(4):
            world.add(8)
        world.step()
        for index in range(num_waiting):
            world.add(12, priority=index % 3, key=f"key-{index % num_keys}")
        world.step()
        return count_calls(world.scheduler.schedule)

    assert num_calls(10_000) <= num_calls(40) + 2


# ---- blocks ----


def test_blocks_of_a_prompt_are_opened_with_the_chunk_that_fills_them(make_world: WorldFactory) -> None:
    world = make_world(budget=16)
    world.add(40)
    held = []
    for _ in range(3):
        world.step()
        held.append(world.pool.num_usable - world.pool.num_free)
    assert held == [4, 8, 10]


def grown_beside_a_prompt(make_world: WorldFactory, priority: int) -> Any:
    """One sequence decodes and has taken a block that the next chunk of the other's prompt needs."""
    world = make_world(num_blocks=9, budget=4)
    world.scheduler._spare_blocks = 0
    decoding = world.add(4, priority=1)
    world.step()
    prompt = world.add(24, priority=priority)
    for _ in range(6):
        assert world.step() == {decoding: 1, prompt: 3}
    return world


def test_the_last_in_order_makes_way_for_a_chunk_and_is_not_in_the_step(make_world: WorldFactory) -> None:
    world = grown_beside_a_prompt(make_world, priority=0)
    decoding, prompt = world.sequences
    assert world.step() == {prompt: 4}, "the whole budget"
    assert decoding.state is SequenceState.WAITING


def test_a_prompt_that_is_last_in_order_makes_way_itself(make_world: WorldFactory) -> None:
    world = grown_beside_a_prompt(make_world, priority=1)
    decoding, prompt = world.sequences
    assert world.step() == {decoding: 1}
    assert prompt.state is SequenceState.WAITING
    world.scheduler.finish(decoding)
    assert world.step() == {prompt: 4}, "what it had computed is cached"
    assert prompt.num_output_tokens == 0


def test_a_chunk_goes_as_far_as_its_blocks_where_a_preempted_decode_leaves_budget(
    make_world: WorldFactory,
) -> None:
    world = make_world(num_blocks=9, budget=11)
    world.scheduler._spare_blocks = 0
    first, second, third = (world.add(length, priority=1) for length in (3, 3, 2))
    world.step()
    prompt = world.add(20)
    assert world.step() == {first: 1, second: 1, third: 1, prompt: 8}
    assert world.step() == {first: 1, second: 1, prompt: 8}, "a ninth token would need another block"
    assert third.state is SequenceState.WAITING


def test_what_comes_back_from_the_host_finds_its_blocks_open(make_world: WorldFactory) -> None:
    world = make_world(num_blocks=9, budget=4, caches=False)
    world.scheduler.swap = SwapSpace(8, 4, 1, SwapCosts(copy_s_per_block=1.0, compute_s_per_token=100.0))
    sequence = world.add(20)
    for _ in range(4):
        world.step()
    world.scheduler._preempt(sequence)
    assert world.step() == {sequence: 4}
    (away, back) = world.scheduler.swap.take_copies(world.num_steps)
    assert back.pairs[:, 1].tolist() == world.pool.table[sequence.slot, :4].tolist()
    assert (away.to_host, back.from_host, min(back.pairs[:, 1]) > 0) == (True, True, True)
