"""When a step is overdue."""

from __future__ import annotations

from trivet.engine.step_pace import MIN_STALL_S, STALL_FACTOR, StepPace


def test_an_engine_that_knows_no_step_has_the_least_time() -> None:
    assert StepPace().due_s(5.0) == 5.0 + MIN_STALL_S


def test_a_slow_model_has_ten_times_its_slowest_step() -> None:
    pace = StepPace()
    for step_s in (0.1, 0.9, 0.1):
        pace.observe(step_s)
    assert 0.95 * STALL_FACTOR * 0.9 < pace.due_s(0.0) <= STALL_FACTOR * 0.9


def test_one_slow_step_is_forgotten() -> None:
    pace = StepPace()
    pace.observe(60.0)
    for _ in range(1000):
        pace.observe(0.01)
    assert pace.due_s(0.0) == MIN_STALL_S
