"""Times that cross a border between hosts, whose clocks have nothing to do with each other."""

from __future__ import annotations

from trivet.messages import Beat, Phase, Submit
from trivet.sampling_params import SamplingParams


def submit(deadline_s: float | None, sent_s: float | None) -> Submit:
    return Submit("r", [1], SamplingParams(), deadline_s=deadline_s, sent_s=sent_s)


def test_a_deadline_counts_from_its_arrival_on_the_receivers_clock() -> None:
    assert submit(9_005.0, 9_000.0).deadline_on(now=17.0) == 22.0
    assert submit(None, 9_000.0).deadline_on(now=17.0) is None


def test_on_one_host_a_deadline_is_a_moment_of_its_one_clock() -> None:
    assert submit(9_005.0, None).deadline_on(now=9_001.0) == 9_005.0


def test_the_times_of_a_step_are_told_on_the_receivers_clock() -> None:
    beat = Beat("i", "l", 1, 1, Phase.READY, "", 0, 0, 500.0, 560.0, step_due_s=501.0, sent_s=502.0)
    here = beat.on_clock(now=10.0)
    assert (here.step_started_s, here.step_deadline_s, here.step_due_s) == (8.0, 68.0, 9.0)
    assert here.on_clock(now=10.0) == here, "twice is once"


def test_times_of_one_host_stay_as_they_are() -> None:
    beat = Beat("i", "l", 1, 1, Phase.READY, "", 0, 0, 500.0, 560.0)
    assert beat.on_clock(now=10.0) is beat
    idle = Beat("i", "l", 1, 1, Phase.READY, sent_s=3.0)
    assert idle.on_clock(now=10.0) is idle
