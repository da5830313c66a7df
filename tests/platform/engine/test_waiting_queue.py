"""The order of those who wait."""

from __future__ import annotations

import pytest

from trivet.engine.sequence import Sequence
from trivet.engine.waiting_queue import WaitingQueue
from trivet.sampling_params import SamplingParams


def sequence(arrival: int, priority: int = 0, max_total_tokens: int = 10) -> Sequence:
    made = Sequence(f"{priority}-{arrival}", [3], SamplingParams(), priority=priority)
    made.arrival, made.max_total_tokens = arrival, max_total_tokens
    return made


def drain(queue: WaitingQueue) -> list[Sequence]:
    order = []
    while (head := queue.head()) is not None:
        queue.remove(head)
        order.append(head)
    return order


def test_the_most_urgent_come_first_and_then_the_oldest() -> None:
    queue = WaitingQueue()
    a, b, c, d = sequence(0, 1), sequence(1, 0), sequence(2, -5), sequence(3, 0)
    for waiting in (a, b, c, d):
        queue.push(waiting)
    assert drain(queue) == [c, b, d, a]


def test_one_that_comes_back_gets_its_old_place() -> None:
    queue = WaitingQueue()
    first, second = sequence(0), sequence(1)
    queue.push(second)
    queue.push(first)
    assert queue.head() is first


def test_one_that_left_is_not_seen_again() -> None:
    queue = WaitingQueue()
    waiting = [sequence(index) for index in range(5)]
    for member in waiting:
        queue.push(member)
    queue.remove(waiting[0])
    queue.remove(waiting[3])
    assert waiting[3] not in queue
    assert len(queue) == 3
    assert drain(queue) == [waiting[1], waiting[2], waiting[4]]
    with pytest.raises(KeyError):
        queue.remove(waiting[0])


def test_tokens_are_summed_over_the_members() -> None:
    queue = WaitingQueue()
    a, b = sequence(0, max_total_tokens=7), sequence(1, max_total_tokens=5)
    queue.push(a)
    queue.push(b)
    assert queue.num_tokens == 12
    queue.remove(a)
    assert queue.num_tokens == 5


def test_aborted_members_behind_a_blocked_head_do_not_pile_up() -> None:
    queue = WaitingQueue()
    queue.push(sequence(0))
    for arrival in range(1, 5000):
        waiting = sequence(arrival)
        queue.push(waiting)
        queue.remove(waiting)
    assert len(queue._heap) < 200
    assert len(queue) == 1
