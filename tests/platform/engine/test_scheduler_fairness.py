"""Who gets the tokens where keys compete, and who makes way where blocks run out."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from trivet.engine.sequence import SequenceState
from trivet.engine.waiting_queue import AGEING_S

WorldFactory = Callable[..., Any]


# ---- keys ----


def run_two_keys(world: Any, num_steps: int) -> dict[str, int]:
    """Tokens that the sequences of each key have got."""
    got = {"flood": 0, "other": 0}
    for _ in range(num_steps):
        for sequence, num_tokens in world.step().items():
            got[sequence.key] += num_tokens
    return got


def test_two_keys_that_both_wait_get_equal_shares_of_the_tokens(make_world: WorldFactory) -> None:
    """Though one asks for longer answers, and more of them."""
    world = make_world(num_blocks=2000, max_num_seqs=8, budget=64, caches=False)
    for _ in range(400):
        world.add(40, max_tokens=120, key="flood")
    for _ in range(400):
        world.add(20, max_tokens=30, key="other")
    got = run_two_keys(world, 1200)
    assert sum(got.values()) > 8000
    assert 0.9 < got["flood"] / got["other"] < 1.1, got


def test_a_key_that_floods_the_queue_does_not_hold_up_another(make_world: WorldFactory) -> None:
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
def test_a_key_with_nothing_running_does_not_wait_for_long_answers_of_another(
    make_world: WorldFactory, lacking: str
) -> None:
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


def test_keys_with_one_sequence_each_do_not_push_each_other_out(make_world: WorldFactory) -> None:
    world = make_world(num_blocks=2000, max_num_seqs=3, budget=64)
    for key in "abcdef":
        world.add(10, max_tokens=20, key=key)
    while world.scheduler.waiting or world.scheduler.running:
        world.step()
    assert world.scheduler.num_preemptions == 0


def test_nobody_makes_way_for_a_less_urgent_one(make_world: WorldFactory) -> None:
    world = make_world(num_blocks=2000, max_num_seqs=2, budget=64)
    for _ in range(2):
        world.add(10, max_tokens=100, key="a")
    world.step()
    world.add(10, priority=1, key="b")
    world.step()
    assert world.scheduler.num_preemptions == 0


def test_a_key_alone_owes_nothing_for_what_it_used_before_the_other_came(make_world: WorldFactory) -> None:
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


# ---- preemption ----


def crowded(make_world: WorldFactory, priorities: tuple[int, ...] = (0, 0, 0)) -> Any:
    """Three sequences of eight tokens fill six of seven blocks and need three more with the next token."""
    world = make_world(num_blocks=8, budget=100)
    for priority in priorities:
        world.add(8, priority=priority)
    world.scheduler._spare_blocks = 0
    assert len(world.step()) == 3
    return world


def test_the_newest_is_preempted_when_blocks_run_out(make_world: WorldFactory) -> None:
    world = crowded(make_world)
    first, second, third = world.sequences
    assert world.step() == {first: 1, second: 1}
    assert third.state is SequenceState.WAITING
    assert world.scheduler.num_preemptions == 1
    assert third.token_ids[-1] == 7, "it keeps what it has generated"


def test_the_least_urgent_is_preempted_before_the_newest(make_world: WorldFactory) -> None:
    world = crowded(make_world, (1, 0, 0))
    least, second, third = world.sequences
    assert world.step() == {second: 1, third: 1}
    assert least.state is SequenceState.WAITING


def test_a_sequence_that_became_urgent_by_waiting_stays_so_while_it_runs(make_world: WorldFactory) -> None:
    world = make_world(num_blocks=8, budget=100)
    world.scheduler._spare_blocks = 0
    patient = world.add(8, priority=1)
    world.clock.now_s += AGEING_S
    newer = [world.add(8), world.add(8)]
    world.step()
    assert world.step() == {patient: 1, newer[0]: 1}


def test_an_urgent_one_that_came_later_is_not_preempted(make_world: WorldFactory) -> None:
    world = make_world(num_blocks=6, budget=100)
    world.scheduler._spare_blocks = 0
    patient = world.add(8, priority=1)
    world.step()
    urgent = world.add(7, priority=0)  # takes the last but one block, and soon the last
    world.step()
    while patient.state is SequenceState.RUNNING:
        assert urgent in world.step()
    assert urgent.state is SequenceState.RUNNING


def test_a_preempted_sequence_starts_over_with_all_its_tokens(make_world: WorldFactory) -> None:
    world = crowded(make_world)
    first, _, third = world.sequences
    world.step()
    world.scheduler.finish(first)
    step = world.submit()
    (part,) = [part for part in step if part.sequence is third]
    assert (part.start + part.num_tokens, part.draws) == (9, True)
    assert part.start == 4, "the second took its last block; the first is still cached"


def test_a_preempted_sequence_waits_for_the_token_that_is_on_its_way(make_world: WorldFactory) -> None:
    world = crowded(make_world)
    first, second, third = world.sequences
    under_way = world.submit()  # all three decode: blocks are there for two of them
    assert third not in {part.sequence for part in under_way}
    third.num_pending_tokens = 1  # as if a step before were still in flight
    for sequence in (first, second):
        world.scheduler.finish(sequence)
    assert world.submit() == []
    third.num_pending_tokens = 0
    assert [part.sequence for part in world.submit()] == [third]


def test_the_last_token_by_count_is_not_scheduled_twice(make_world: WorldFactory) -> None:
    world = make_world()
    sequence = world.add(5, max_tokens=1)
    step = world.submit()
    assert world.submit() == [], "its only token is on the way"
    world.commit(step)
    assert sequence.state is SequenceState.FINISHED
    assert world.pool.usage == 0


def test_an_admission_leaves_spare_blocks_for_those_that_run(make_world: WorldFactory) -> None:
    world = make_world(num_blocks=9, budget=100)
    world.add(8)
    world.step()
    tight = world.add(20)  # five of the six free blocks would do, but the first needs the sixth now
    world.step()
    assert tight.state is SequenceState.WAITING
