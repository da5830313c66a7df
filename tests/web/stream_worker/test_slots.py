"""Slots of a web process: bounded, and a refusal says when half of them will be free at the measured pace."""

from __future__ import annotations

import pytest

from trivet.errors import Overloaded
from trivet_web.stream_worker.slots import Slots


class Clock:
    now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


@pytest.fixture
def clock() -> Clock:
    return Clock()


def refusal(slots: Slots) -> Overloaded:
    with pytest.raises(Overloaded, match="holds 8 requests already") as caught:
        slots.take()
    return caught.value


def test_so_many_are_given_and_one_that_comes_back_is_given_again(clock: Clock) -> None:
    slots = Slots(8, clock)
    taken = [slots.take() for _ in range(8)]
    refusal(slots)
    taken[0]()
    slots.take()
    refusal(slots)


def test_before_one_has_come_back_nothing_is_known(clock: Clock) -> None:
    slots = Slots(8, clock)
    for _ in range(8):
        slots.take()
    assert refusal(slots).retry_after_s == 1


@pytest.mark.parametrize(("every_s", "expected_s"), [(0.1, 1), (5, 20), (60, 240), (10_000, 600)])
def test_a_refusal_says_when_half_will_be_free(clock: Clock, every_s: float, expected_s: int) -> None:
    slots = Slots(8, clock)
    taken = [slots.take() for _ in range(8)]
    for give_back in taken[:3]:
        clock.now_s += every_s
        give_back()
        slots.take()
    assert refusal(slots).retry_after_s == expected_s


def test_the_time_when_there_was_room_says_nothing(clock: Clock) -> None:
    slots = Slots(8, clock)
    for _ in range(100):  # 0.01 a second, because nobody asked
        give_back = slots.take()
        clock.now_s += 100
        give_back()
    taken = [slots.take() for _ in range(8)]
    clock.now_s += 2
    taken[0]()
    slots.take()
    assert refusal(slots).retry_after_s == 8
