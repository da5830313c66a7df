"""Who has run out of time."""

from __future__ import annotations

from trivet.engine.deadlines import Deadlines
from trivet.engine.sequence import Sequence, SequenceState
from trivet.sampling_params import SamplingParams


def sequence(arrival: int, deadline_s: float | None) -> Sequence:
    made = Sequence(str(arrival), [3], SamplingParams(), deadline_s=deadline_s)
    made.arrival = arrival
    return made


def test_each_is_told_once_and_the_nearest_first() -> None:
    deadlines = Deadlines()
    late, early, later = sequence(0, 8.0), sequence(1, 5.0), sequence(2, 20.0)
    for one in (late, early, later, sequence(3, None)):
        deadlines.add(one)
    assert list(deadlines.passed(4.9)) == []
    assert list(deadlines.passed(8.0)) == [early, late]
    assert list(deadlines.passed(8.0)) == []
    assert list(deadlines.passed(30.0)) == [later]


def test_what_has_ended_has_no_deadline() -> None:
    deadlines = Deadlines()
    ended, living = sequence(0, 5.0), sequence(1, 5.0)
    for one in (ended, living):
        deadlines.add(one)
    ended.state = SequenceState.FINISHED
    assert list(deadlines.passed(6.0)) == [living]


def test_ended_ones_do_not_pile_up() -> None:
    deadlines = Deadlines()
    for arrival in range(5000):
        one = sequence(arrival, 1e9)
        deadlines.add(one)
        one.state = SequenceState.FINISHED
    assert len(deadlines) < 200
