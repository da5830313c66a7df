"""What a refused client is told to wait."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from trivet.engine.queue_pace import MAX_RETRY_AFTER_S, WINDOW, QueuePace


@dataclass
class Clock:
    """Time that passes only when a test says so."""

    now_s: float = 100.0

    def __call__(self) -> float:
        return self.now_s


@pytest.fixture
def clock() -> Clock:
    return Clock()


def admit(pace: QueuePace, clock: Clock, count: int, every_s: float) -> None:
    for _ in range(count):
        clock.now_s += every_s
        pace.admitted()


def test_it_is_what_so_many_took_before(clock: Clock) -> None:
    pace = QueuePace(clock)
    pace.restart()
    admit(pace, clock, 10, every_s=0.5)
    assert pace.retry_after_s(30) == 15


def test_the_newest_admissions_count(clock: Clock) -> None:
    pace = QueuePace(clock)
    pace.restart()
    admit(pace, clock, 500, every_s=0.01)
    admit(pace, clock, WINDOW, every_s=2.0)
    assert pace.retry_after_s(10) == 20


def test_an_idle_time_slows_nothing(clock: Clock) -> None:
    pace = QueuePace(clock)
    pace.restart()
    admit(pace, clock, 10, every_s=1.0)
    clock.now_s += 3600
    pace.restart()
    admit(pace, clock, 39, every_s=0.1)
    assert pace.retry_after_s(80) == 10  # 39 in 3.9 s, and one as before, in 1 s


def test_an_engine_that_admits_nobody_is_slower_the_longer_that_lasts(clock: Clock) -> None:
    pace = QueuePace(clock)
    pace.restart()
    admit(pace, clock, 10, every_s=1.0)
    pace.restart()
    assert pace.retry_after_s(5) == 5
    clock.now_s += 60
    assert pace.retry_after_s(5) == 300
    clock.now_s += 6000
    assert pace.retry_after_s(5) == MAX_RETRY_AFTER_S


def test_who_finds_an_idle_engine_does_not_make_it_look_fast(clock: Clock) -> None:
    pace = QueuePace(clock)
    for _ in range(2):  # bursts: the first is admitted at once, the others when a place is free
        clock.now_s += 60
        pace.restart()
        admit(pace, clock, 1, every_s=0.001)
        clock.now_s += 0.3
        answer = pace.retry_after_s(2)
        admit(pace, clock, 2, every_s=10.0)
    assert 6 <= answer <= 20


def test_it_is_a_second_where_nothing_is_known(clock: Clock) -> None:
    assert QueuePace(clock).retry_after_s(1000) == 1
