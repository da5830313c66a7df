"""The order of those who wait."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trivet.engine.sequence import NUM_CLASSES, Sequence
from trivet.engine.waiting_queue import AGEING_S, LESS_URGENT_SHARE, QUANTUM_TOKENS, WaitingQueue
from trivet.sampling_params import SamplingParams


@dataclass
class Clock:
    """Time that passes only when a test says so."""

    now_s: float = 100.0

    def __call__(self) -> float:
        return self.now_s


def sequence(arrival: int, priority: int = 0, max_total_tokens: int = 10, **own: Any) -> Sequence:
    made = Sequence(f"{priority}-{arrival}", [3], SamplingParams(), priority=priority, **own)
    made.arrival, made.max_total_tokens, made.arrival_s = arrival, max_total_tokens, 100.0
    return made


def admit(queue: WaitingQueue) -> Sequence:
    """The head starts to run, and its key is charged for all that it may compute."""
    head = queue.head()
    assert head is not None
    assert queue.head() is head, "looking changes nothing"
    queue.admit(head)
    head.account.credit -= head.max_total_tokens
    return head


def drain(queue: WaitingQueue) -> list[Sequence]:
    return [admit(queue) for _ in range(len(queue))]


def test_the_most_urgent_come_first_and_then_the_oldest() -> None:
    queue = WaitingQueue(Clock())
    a, b, c, d = sequence(0, 6), sequence(1, 5), sequence(2, 0), sequence(3, 5)
    for waiting in (a, b, c, d):
        queue.push(waiting)
    assert drain(queue) == [c, b, d, a]


def test_those_that_come_back_go_before_all_of_their_class_in_their_old_order() -> None:
    queue = WaitingQueue(Clock())
    first, second, third = (
        sequence(arrival, key=key, max_total_tokens=100) for arrival, key in enumerate("aba")
    )
    for one in (first, second, third):
        queue.push(one)
    assert [admit(queue) for _ in range(2)] == [first, second]
    queue.put_back(second)
    queue.put_back(first)
    assert drain(queue) == [first, second, third]


def test_one_that_left_is_not_seen_again() -> None:
    queue = WaitingQueue(Clock())
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
    queue = WaitingQueue(Clock())
    a, b = sequence(0, max_total_tokens=7), sequence(1, max_total_tokens=5)
    queue.push(a)
    queue.push(b)
    assert queue.num_tokens == 12
    queue.remove(a)
    assert queue.num_tokens == 5


def test_aborted_members_behind_a_blocked_head_do_not_pile_up() -> None:
    queue = WaitingQueue(Clock())
    queue.push(sequence(0))
    for arrival in range(1, 5000):
        waiting = sequence(arrival, key=f"key {arrival}", priority=1)
        queue.push(waiting)
        queue.remove(waiting)
        queue.leave(waiting)
    assert queue._num_entries < 200
    assert len(queue._lifts) < 200
    assert sum(len(members.lanes) + len(members.turns) for members in queue._classes.values()) < 400
    assert len(queue) == 1


# ---- classes ----


def test_a_request_is_at_most_of_its_keys_class_and_at_least_of_the_last() -> None:
    assert sequence(0, priority=-3, key_class=2).priority_class == 2
    assert sequence(0, priority=4, key_class=2).priority_class == 4
    assert sequence(0, priority=2**31 - 1, key_class=2).priority_class == 2 + NUM_CLASSES - 1


def test_waiting_lifts_a_class_at_a_time_and_not_above_the_keys_class() -> None:
    clock = Clock()
    queue = WaitingQueue(clock)
    patient = sequence(0, priority=3, key_class=1)
    queue.push(patient)
    classes = []
    for _ in range(5):
        clock.now_s += AGEING_S
        queue.head()
        classes.append(patient.priority_class)
    assert classes == [2, 1, 1, 1, 1]


def test_what_came_back_keeps_the_age_it_had() -> None:
    clock = Clock()
    queue = WaitingQueue(clock)
    patient = sequence(0, priority=3)
    queue.push(patient)
    queue.admit(patient)
    clock.now_s += 2 * AGEING_S
    queue.put_back(patient)
    assert patient.priority_class == 1
    clock.now_s += AGEING_S
    queue.head()
    assert patient.priority_class == 0


def test_less_urgent_ones_get_their_small_share_of_the_tokens() -> None:
    queue = WaitingQueue(Clock())
    for arrival in range(200):
        queue.push(sequence(arrival, priority=0))
    for arrival in range(200, 400):
        queue.push(sequence(arrival, priority=1, key="batch", key_class=1))
    order = [admit(queue).priority_class for _ in range(150)]
    assert order[:10] == [0] * 10
    assert order.count(1) == pytest.approx(150 * LESS_URGENT_SHARE, abs=2)


def test_the_share_is_paid_for_before_it_is_taken() -> None:
    queue = WaitingQueue(Clock())
    long = sequence(0, priority=1, key_class=1, max_total_tokens=100)
    queue.push(long)
    for arrival in range(1, 400):
        queue.push(sequence(arrival))
    order = [admit(queue) for _ in range(165)]
    assert order.index(long) == 100 / LESS_URGENT_SHARE / 10


# ---- keys ----


@given(
    st.lists(st.tuples(st.sampled_from("abc"), st.integers(1, 3000)), min_size=30, max_size=120),
)
def test_keys_that_wait_are_at_most_a_turn_and_a_sequence_apart(wishes: list[tuple[str, int]]) -> None:
    """Over any stretch in which both wait: the bound of deficit round robin."""
    queue = WaitingQueue(Clock())
    for arrival, (key, tokens) in enumerate(wishes):
        queue.push(sequence(arrival, key=key, max_total_tokens=tokens))
    left = Counter(key for key, _ in wishes)
    got: Counter[str] = Counter()
    while min(left.values()) > 0:
        one = admit(queue)
        got[one.key] += one.max_total_tokens
        left[one.key] -= 1
        assert max(got[key] for key in left) - min(got[key] for key in left) <= QUANTUM_TOKENS + 2 * 3000


def test_a_key_in_debt_waits_until_the_others_have_had_as_much() -> None:
    queue = WaitingQueue(Clock())
    for arrival in range(100):
        queue.push(sequence(arrival, key="a"))
    big = admit(queue)
    big.account.credit -= 10 * QUANTUM_TOKENS  # it goes on generating
    for arrival in range(100, 200):
        queue.push(sequence(arrival, key="b"))
    order = [admit(queue).key for _ in range(90)]
    assert set(order[:50]) == {"b"}
    assert "a" in order[60:]


def test_nothing_is_owed_for_a_time_when_nobody_waited() -> None:
    queue = WaitingQueue(Clock())
    queue.push(sequence(0, key="a"))
    admit(queue).account.credit -= 10**6
    queue.push(sequence(1, key="b"))
    queue.push(sequence(2, key="a"))
    assert [one.key for one in drain(queue)] == ["b", "a"]
    assert abs(queue._accounts["a"].credit) <= QUANTUM_TOKENS


def test_a_key_without_sequences_is_forgotten() -> None:
    queue = WaitingQueue(Clock())
    for arrival in range(1000):
        one = sequence(arrival, key=f"key {arrival}")
        queue.push(one)
        if arrival % 2:
            queue.admit(one)
        else:
            queue.remove(one)
        queue.leave(one)
    assert queue.num_keys("new") == 1
    assert not queue._classes


def test_counts_by_key() -> None:
    queue = WaitingQueue(Clock())
    for arrival, key in enumerate("aab"):
        queue.push(sequence(arrival, key=key))
    assert (queue.num_waiting("a"), queue.num_waiting("b"), queue.num_waiting("c")) == (2, 1, 0)
    admit(queue)
    assert queue.num_waiting("a") + queue.num_waiting("b") == 2
    assert (queue.num_keys("a"), queue.num_keys("new")) == (2, 3)
