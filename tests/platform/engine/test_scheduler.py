"""What a step holds: budget, order, chunks, preemption, shared prefixes."""

from __future__ import annotations

import random
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest

from trivet.engine.block_pool import BlockPool
from trivet.engine.scheduler import Scheduled, Scheduler
from trivet.engine.sequence import Sequence, SequenceState
from trivet.engine.waiting_queue import AGEING_S
from trivet.sampling_params import SamplingParams


@dataclass
class Clock:
    """Time that passes only when a test says so."""

    now_s: float = 100.0

    def __call__(self) -> float:
        return self.now_s


@dataclass
class World:
    """A scheduler whose steps are collected at once, with token 7 for everybody."""

    scheduler: Scheduler
    pool: BlockPool
    clock: Clock
    num_steps: int = 0
    sequences: list[Sequence] = field(default_factory=list)

    def add(self, prompt: int | list[int], max_tokens: int = 50, **own: Any) -> Sequence:
        tokens = prompt if isinstance(prompt, list) else unique_tokens(prompt)
        sequence = Sequence(f"r{len(self.sequences)}", tokens, SamplingParams(), **own)
        sequence.arrival, sequence.arrival_s = len(self.sequences), self.clock.now_s
        sequence.max_total_tokens = len(tokens) + max_tokens
        self.sequences.append(sequence)
        self.scheduler.waiting.push(sequence)
        return sequence

    def submit(self) -> list[Scheduled]:
        step = self.scheduler.schedule()
        self.pool.check_integrity()
        self.num_steps += 1
        self.scheduler.submitted(step, self.num_steps)
        for part in step:
            part.sequence.first_scheduled_s = part.sequence.first_scheduled_s or 1.0
        return step

    def commit(self, step: list[Scheduled], number: int | None = None) -> None:
        self.pool.confirm(self.num_steps if number is None else number)
        for part in step:
            sequence = part.sequence
            if part.draws and sequence.state is not SequenceState.FINISHED:
                sequence.num_pending_tokens -= 1
                sequence.token_ids.append(7)
                if len(sequence.token_ids) >= sequence.max_total_tokens:
                    self.scheduler.finish(sequence)

    def step(self) -> dict[Sequence, int]:
        """Submit and commit; what each sequence got."""
        step = self.submit()
        self.commit(step)
        return {part.sequence: part.num_tokens for part in step}


_seeds = random.Random(0)


def unique_tokens(count: int) -> list[int]:
    return [_seeds.randrange(10, 10**6) for _ in range(count)]


def make_world(
    *,
    num_blocks: int = 100,
    block_size: int = 4,
    max_num_seqs: int = 8,
    budget: int = 16,
    caches: bool = True,
) -> World:
    pool = BlockPool(num_blocks, block_size, max_num_seqs, max_model_len=(num_blocks - 1) * block_size)
    clock = Clock()
    scheduler = Scheduler(
        pool, max_num_seqs=max_num_seqs, token_budget=budget, enable_prefix_caching=caches, clock=clock
    )
    return World(scheduler, pool, clock)


def test_nothing_to_do_is_an_empty_step() -> None:
    assert make_world().scheduler.schedule() == []


def test_a_long_prompt_is_computed_in_chunks_and_draws_with_its_last() -> None:
    world = make_world(budget=16)
    world.add(40)
    steps = [world.submit() for _ in range(3)]
    assert [(part.start, part.num_tokens, part.draws) for (part,) in steps] == [
        (0, 16, False),
        (16, 16, False),
        (32, 8, True),
    ]


def test_decodes_come_first_and_prompts_get_what_is_left() -> None:
    world = make_world(budget=16)
    first, second = world.add(8), world.add(6)
    world.step()
    long = world.add(40)
    assert world.step() == {first: 1, second: 1, long: 14}
    short = world.add(3)
    assert world.step() == {first: 1, second: 1, long: 14}
    assert world.step() == {first: 1, second: 1, long: 12, short: 2}
    assert world.step() == {first: 1, second: 1, long: 1, short: 1}


def test_a_step_is_sorted_by_query_length() -> None:
    world = make_world(budget=30)
    world.add(9)
    world.step()
    for length in (12, 3, 7):
        world.add(length)
    assert [part.num_tokens for part in world.submit()] == [1, 3, 7, 12]


def test_no_more_sequences_run_than_there_are_slots() -> None:
    world = make_world(max_num_seqs=3, budget=100)
    sequences = [world.add(5, max_tokens=3) for _ in range(5)]
    assert list(world.step()) == sequences[:3]
    assert len({sequence.slot for sequence in sequences[:3]}) == 3
    world.step()
    assert list(world.step()) == sequences[:3]
    assert list(world.step()) == sequences[3:]


def test_urgent_ones_are_admitted_first_and_equals_in_order_of_arrival() -> None:
    world = make_world(max_num_seqs=1, budget=100)
    waiting = [world.add(5, max_tokens=1, priority=priority) for priority in (2, 1, 0, 1)]
    admitted = [next(iter(world.step())) for _ in range(4)]
    assert admitted == [waiting[2], waiting[1], waiting[3], waiting[0]]


def test_waiting_makes_more_urgent() -> None:
    world = make_world(max_num_seqs=1, budget=100)
    patient = world.add(5, max_tokens=1, priority=1)
    world.clock.now_s += AGEING_S
    urgent = world.add(5, max_tokens=1, priority=0)
    assert list(world.step()) == [patient]
    assert list(world.step()) == [urgent]


# ---- keys ----


def run_two_keys(world: World, num_steps: int) -> dict[str, int]:
    """Tokens that the sequences of each key have got."""
    got = {"flood": 0, "other": 0}
    for _ in range(num_steps):
        for sequence, num_tokens in world.step().items():
            got[sequence.key] += num_tokens
    return got


def test_two_keys_that_both_wait_get_equal_shares_of_the_tokens() -> None:
    """Though one asks for longer answers, and more of them."""
    world = make_world(num_blocks=2000, max_num_seqs=8, budget=64, caches=False)
    for _ in range(400):
        world.add(40, max_tokens=120, key="flood")
    for _ in range(400):
        world.add(20, max_tokens=30, key="other")
    got = run_two_keys(world, 1200)
    assert sum(got.values()) > 8000
    assert 0.9 < got["flood"] / got["other"] < 1.1, got


def test_a_key_that_floods_the_queue_does_not_hold_up_another() -> None:
    world = make_world(num_blocks=2000, max_num_seqs=8, budget=64, caches=False)
    for index in range(1000):
        world.add(30, max_tokens=5 + index % 40, key="flood")
    for _ in range(50):
        world.step()
    waits = []
    for _ in range(20):
        one = world.add(30, max_tokens=20, key="other")
        waits.append(0)
        while one.num_output_tokens == 0:
            world.step()
            waits[-1] += 1
        while one.state is not SequenceState.FINISHED:
            world.step()
    assert max(waits) <= 3, "steps: what is being read of another's prompt, and its own"
    assert len(world.scheduler.waiting) > 500, "the flood still waits"


@pytest.mark.parametrize("lacking", ["slots", "blocks"])
def test_a_key_with_nothing_running_does_not_wait_for_long_answers_of_another(lacking: str) -> None:
    if lacking == "slots":
        world = make_world(num_blocks=2000, max_num_seqs=4, budget=64)
    else:
        world = make_world(num_blocks=54, max_num_seqs=8, budget=64)
    flood = [world.add(40, max_tokens=1000, key="flood") for _ in range(4)]
    for _ in range(6):
        world.step()
    assert all(one.state is SequenceState.RUNNING for one in flood)
    one = world.add(30, max_tokens=5, key="other")
    world.step()
    assert one.num_output_tokens == 1
    assert flood[-1].state is SequenceState.WAITING
    assert world.scheduler.num_preemptions == 1
    second = world.add(30, max_tokens=5, key="other")
    world.step()
    assert second.state is SequenceState.WAITING, "its key runs one now"
    while one.state is not SequenceState.FINISHED:
        world.step()
    assert world.step().keys() >= set(flood[:3])
    assert flood[:3] == world.scheduler.running[:3]


def test_keys_with_one_sequence_each_do_not_push_each_other_out() -> None:
    world = make_world(num_blocks=2000, max_num_seqs=3, budget=64)
    for key in "abcdef":
        world.add(10, max_tokens=20, key=key)
    while world.scheduler.waiting or world.scheduler.running:
        world.step()
    assert world.scheduler.num_preemptions == 0


def test_nobody_makes_way_for_a_less_urgent_one() -> None:
    world = make_world(num_blocks=2000, max_num_seqs=2, budget=64)
    for _ in range(2):
        world.add(10, max_tokens=100, key="a")
    world.step()
    world.add(10, priority=1, key="b")
    world.step()
    assert world.scheduler.num_preemptions == 0


def test_a_key_alone_owes_nothing_for_what_it_used_before_the_other_came() -> None:
    world = make_world(num_blocks=2000, max_num_seqs=2, budget=64, caches=False)
    for _ in range(2):
        world.add(10, max_tokens=2000, key="flood")
    for _ in range(1500):
        world.step()
    for _ in range(40):
        world.add(10, max_tokens=10, key="flood")
        world.add(10, max_tokens=10, key="other")
    for sequence in world.sequences[:2]:
        world.scheduler.finish(sequence)
    got = run_two_keys(world, 100)
    assert 0.7 < got["flood"] / got["other"] < 1.4, got


def test_a_head_without_room_is_not_overtaken() -> None:
    world = make_world(num_blocks=11, budget=100)
    running = world.add(30)
    world.step()
    world.add(20)
    small = world.add(2)
    world.step()
    assert small.state is SequenceState.WAITING
    world.scheduler.finish(running)
    assert len(world.step()) == 2


# ---- preemption ----


def crowded(priorities: tuple[int, ...] = (0, 0, 0)) -> World:
    """Three sequences of eight tokens fill six of seven blocks and need three more with the next token."""
    world = make_world(num_blocks=8, budget=100)
    for priority in priorities:
        world.add(8, priority=priority)
    world.scheduler._spare_blocks = 0
    assert len(world.step()) == 3
    return world


def test_the_newest_is_preempted_when_blocks_run_out() -> None:
    world = crowded()
    first, second, third = world.sequences
    assert world.step() == {first: 1, second: 1}
    assert third.state is SequenceState.WAITING
    assert world.scheduler.num_preemptions == 1
    assert third.token_ids[-1] == 7, "it keeps what it has generated"


def test_the_least_urgent_is_preempted_before_the_newest() -> None:
    world = crowded((1, 0, 0))
    least, second, third = world.sequences
    assert world.step() == {second: 1, third: 1}
    assert least.state is SequenceState.WAITING


def test_a_sequence_that_became_urgent_by_waiting_stays_so_while_it_runs() -> None:
    world = make_world(num_blocks=8, budget=100)
    world.scheduler._spare_blocks = 0
    patient = world.add(8, priority=1)
    world.clock.now_s += AGEING_S
    newer = [world.add(8), world.add(8)]
    world.step()
    assert world.step() == {patient: 1, newer[0]: 1}


def test_an_urgent_one_that_came_later_is_not_preempted() -> None:
    world = make_world(num_blocks=6, budget=100)
    world.scheduler._spare_blocks = 0
    patient = world.add(8, priority=1)
    world.step()
    urgent = world.add(7, priority=0)  # takes the last but one block, and soon the last
    world.step()
    while patient.state is SequenceState.RUNNING:
        assert urgent in world.step()
    assert urgent.state is SequenceState.RUNNING


def test_a_preempted_sequence_starts_over_with_all_its_tokens() -> None:
    world = crowded()
    first, _, third = world.sequences
    world.step()
    world.scheduler.finish(first)
    step = world.submit()
    (part,) = [part for part in step if part.sequence is third]
    assert (part.start + part.num_tokens, part.draws) == (9, True)
    assert part.start == 4, "the second took its last block; the first is still cached"


def test_a_preempted_sequence_waits_for_the_token_that_is_on_its_way() -> None:
    world = crowded()
    first, second, third = world.sequences
    under_way = world.submit()  # all three decode: blocks are there for two of them
    assert third not in {part.sequence for part in under_way}
    third.num_pending_tokens = 1  # as if a step before were still in flight
    for sequence in (first, second):
        world.scheduler.finish(sequence)
    assert world.submit() == []
    third.num_pending_tokens = 0
    assert [part.sequence for part in world.submit()] == [third]


def test_the_last_token_by_count_is_not_scheduled_twice() -> None:
    world = make_world()
    sequence = world.add(5, max_tokens=1)
    step = world.submit()
    assert world.submit() == [], "its only token is on the way"
    world.commit(step)
    assert sequence.state is SequenceState.FINISHED
    assert world.pool.usage == 0


def test_an_admission_leaves_spare_blocks_for_those_that_run() -> None:
    world = make_world(num_blocks=9, budget=100)
    world.add(8)
    world.step()
    tight = world.add(20)  # five of the six free blocks would do, but the first needs the sixth now
    world.step()
    assert tight.state is SequenceState.WAITING


# ---- prefix cache ----


def test_a_wave_with_one_prompt_computes_it_once() -> None:
    world = make_world(budget=64)
    prompt = unique_tokens(42)
    wave = [world.add([*prompt, index], max_tokens=3) for index in range(6)]
    computed = 0
    while any(sequence.state is not SequenceState.FINISHED for sequence in wave):
        computed += sum(got for got in world.step().values())
    assert computed <= 43 + 5 * (43 - 40) + 6 * 3
    assert [sequence.num_cached_tokens for sequence in wave] == [0, 40, 40, 40, 40, 40]
    assert (world.scheduler.prefix_queries, world.scheduler.prefix_hits) == (6 * 43, 5 * 40)


def test_the_wave_waits_while_the_prompt_comes_in_chunks() -> None:
    world = make_world(budget=16)
    prompt = unique_tokens(60)
    first, second = world.add([*prompt, 1]), world.add([*prompt, 2])
    for _ in range(3):
        assert list(world.step()) == [first]
    assert world.step() == {first: 13}
    assert world.step() == {first: 1, second: 1}
    assert second.num_cached_tokens == 60


def test_an_unrelated_prompt_does_not_wait() -> None:
    world = make_world(budget=64)
    world.add(20)
    world.add(20)
    assert len(world.step()) == 2


def test_a_prompt_can_be_hit_from_the_step_after_its_submission_on() -> None:
    world = make_world(budget=64)
    prompt = unique_tokens(20)
    world.add([*prompt, 1])
    world.submit()  # not collected
    second = world.add([*prompt, 2])
    assert second in {part.sequence for part in world.submit()}
    assert second.num_cached_tokens == 20


def test_a_step_that_is_taken_back_leaves_nothing_behind() -> None:
    world = make_world(budget=64)
    prompt = unique_tokens(20)
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
def test_the_length_of_the_queue_costs_nothing(is_blocked: bool, num_keys: int) -> None:
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


def count_calls(function: Callable[[], object]) -> int:
    calls = 0

    def profile(frame: object, event: str, argument: object) -> None:
        nonlocal calls
        calls += event in ("call", "c_call")

    before = sys.getprofile()
    sys.setprofile(profile)
    try:
        function()
    finally:
        sys.setprofile(before)
    return calls
