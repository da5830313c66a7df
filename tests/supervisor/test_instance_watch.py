from __future__ import annotations

from typing import Any

import pytest

from trivet.launching import ProcessIdentity
from trivet.messages import Beat, Phase
from trivet_registry.instance_state import InstanceState
from trivet_supervisor.instance_watch import Advance, Ask, GiveUp, Limits, Watched, judge

S = InstanceState
LIMITS = Limits()


class Handle:
    identity = ProcessIdentity(1, 1.0)

    def exit_code(self) -> int | None:
        return None

    def unreachable(self) -> str:
        return ""

    def terminate(self) -> None:
        raise AssertionError

    def kill(self) -> None:
        raise AssertionError


def watched(state: S, beat: Beat | None = None, now: float = 0.0) -> Watched:
    made = Watched(Handle(), "lease", state, now, now, now, now)
    if beat is not None:
        made.hear(beat, now)
    return made


def beat(phase: Phase, **fields: Any) -> Beat:
    return Beat("i", "lease", 1, 1, phase, **fields)


@pytest.mark.parametrize(
    ("state", "phase", "to"),
    [
        (S.STARTING, Phase.LOADING, S.LOADING),
        (S.LOADING, Phase.WARMING, S.WARMING),
        (S.WARMING, Phase.READY, S.READY),
        (S.STARTING, Phase.READY, S.READY),  # beats were missed
        (S.READY, Phase.STOPPING, S.STOPPING),
    ],
)
def test_the_engine_says_its_own_state(state: S, phase: Phase, to: S) -> None:
    verdict = judge(watched(state, beat(phase)), 0.1, LIMITS)
    assert isinstance(verdict, Advance)
    assert verdict.to is to


@pytest.mark.parametrize(
    ("state", "phase"),
    [
        (S.LOADING, Phase.LOADING),
        (S.READY, Phase.LOADING),
        (S.STARTING, Phase.STARTING),
        (S.READY, Phase.DRAINING),
    ],
)
def test_no_beat_moves_an_instance_back(state: S, phase: Phase) -> None:
    assert judge(watched(state, beat(phase)), 0.1, LIMITS) is None


def test_ready_is_never_concluded_from_silence_or_time() -> None:
    for now in (0.1, 4.9, 1e3):
        verdict = judge(watched(S.WARMING, beat(Phase.WARMING)), now, LIMITS)
        assert not isinstance(verdict, Advance)


def test_a_process_without_a_sign_of_life_has_a_deadline() -> None:
    starting = watched(S.STARTING)
    assert judge(starting, LIMITS.starting_s - 1, LIMITS) is None
    verdict = judge(starting, LIMITS.starting_s + 1, LIMITS)
    assert isinstance(verdict, GiveUp)
    assert "no sign of life" in verdict.reason


def test_a_process_that_beats_and_never_loads_has_the_same_deadline() -> None:
    starting = watched(S.STARTING)
    late_s = LIMITS.starting_s + 1
    starting.hear(beat(Phase.STARTING), late_s)
    verdict = judge(starting, late_s, LIMITS)
    assert isinstance(verdict, GiveUp)
    assert "nothing of loading" in verdict.reason


def test_loading_may_take_long_but_not_stand_still() -> None:
    loading = watched(S.LOADING)
    for second in range(0, 3600, 4):
        loading.hear(beat(Phase.LOADING, progress_done=second, progress_total=9999), second)
        assert judge(loading, second, LIMITS) is None
    stuck_s = 3596 + LIMITS.loading_stall_s + 1
    loading.hear(beat(Phase.LOADING, progress_done=3596, progress_total=9999), stuck_s)
    verdict = judge(loading, stuck_s, LIMITS)
    assert isinstance(verdict, GiveUp)
    assert "3596 of 9999 bytes" in verdict.reason


def test_warming_has_a_deadline() -> None:
    warming = watched(S.WARMING)
    late_s = LIMITS.warming_s + 1
    warming.hear(beat(Phase.WARMING), late_s)
    assert isinstance(judge(warming, late_s, LIMITS), GiveUp)


def test_a_failure_that_does_not_end_has_a_deadline() -> None:
    failing = watched(S.LOADING, beat(Phase.FAILED, reason="out of memory"))
    late_s = LIMITS.failing_s + 1
    failing.hear(beat(Phase.FAILED, reason="out of memory"), late_s)
    verdict = judge(failing, late_s, LIMITS)
    assert isinstance(verdict, GiveUp)
    assert "out of memory" in verdict.reason


def test_a_silent_engine_is_asked_before_it_is_given_up() -> None:
    silent = watched(S.READY, beat(Phase.READY))
    assert judge(silent, 4.9, LIMITS) is None
    assert judge(silent, 5.1, LIMITS) == Ask()
    silent.asked_s = 5.1
    assert judge(silent, 5.2, LIMITS) is None
    verdict = judge(silent, 5.1 + LIMITS.answer_s + 0.1, LIMITS)
    assert isinstance(verdict, GiveUp)
    assert verdict.for_silence


@pytest.mark.parametrize(("state", "phase"), [(S.LOADING, Phase.LOADING), (S.WARMING, Phase.WARMING)])
def test_one_that_comes_up_may_be_silent_for_as_long_as_a_library_loads(state: S, phase: Phase) -> None:
    booting = watched(state, beat(phase))
    assert judge(booting, LIMITS.boot_silence_s - 1, LIMITS) is None
    assert judge(booting, LIMITS.boot_silence_s + 1, LIMITS) == Ask()


def test_an_answer_ends_the_question() -> None:
    silent = watched(S.READY, beat(Phase.READY))
    silent.asked_s = 5.1
    silent.hear(beat(Phase.READY), 7.0)
    assert judge(silent, 11.9, LIMITS) is None
    assert judge(silent, 12.1, LIMITS) == Ask()


def test_silence_before_an_announced_step_deadline_ends_nothing() -> None:
    busy = watched(S.READY, beat(Phase.READY, step_started_s=0.0, step_deadline_s=60.0))
    assert judge(busy, 64.9, LIMITS) is None
    assert judge(busy, 65.1, LIMITS) == Ask()


def test_a_step_that_never_ends_is_given_up_though_the_heart_beats() -> None:
    hung = watched(S.READY)
    hung.hear(beat(Phase.READY, step_started_s=0.0, step_deadline_s=60.0), 65.2)
    verdict = judge(hung, 65.3, LIMITS)
    assert isinstance(verdict, GiveUp)
    assert "step" in verdict.reason
