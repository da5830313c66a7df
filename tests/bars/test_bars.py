"""Ratios and verdicts."""

from __future__ import annotations

import pytest
from trivet_bars.bars import BARS, Bar, Goal, Transport, Verdict, judge
from trivet_bars.ladder import MEASURES

RATE = Bar(Transport.HTTP, MEASURES["at_once_32"], 1.5)
TIME = Bar(Transport.HTTP, MEASURES["shared_prefix_cold"], 1.5)


def test_a_rate_is_compared_with_the_fastest_peer() -> None:
    outcome = judge(RATE, [300.0], {"slow": [100.0], "fast": [200.0]})
    assert (outcome.peer_name, outcome.ratio, outcome.verdict) == ("fast", 1.5, Verdict.MET)


def test_a_time_is_compared_with_the_shortest() -> None:
    outcome = judge(TIME, [2.0], {"slow": [9.0], "fast": [3.0]})
    assert (outcome.peer_name, outcome.ratio, outcome.verdict) == ("fast", 1.5, Verdict.MET)


def test_less_than_the_factor_is_not_met() -> None:
    assert judge(RATE, [299.0], {"peer": [200.0]}).verdict == Verdict.NOT_MET


def test_the_ratio_is_the_median_of_the_rounds_and_not_of_the_figures() -> None:
    """In the second round something else ran: both engines were slower, and their ratio was the same."""
    outcome = judge(RATE, [300.0, 150.0, 330.0], {"peer": [200.0, 100.0, 220.0]})
    assert outcome.ratio == 1.5


def test_a_peer_without_samples_is_no_peer() -> None:
    assert judge(RATE, [300.0], {"away": [], "here": [100.0]}).peer_name == "here"


@pytest.mark.parametrize(("trivet", "peers"), [([], {"peer": [1.0]}), ([1.0], {}), ([1.0], {"peer": []})])
def test_a_bar_without_both_sides_is_not_measured(trivet: list[float], peers: dict[str, list[float]]) -> None:
    assert judge(RATE, trivet, peers).verdict == Verdict.NOT_MEASURED


@pytest.mark.parametrize(
    ("value", "is_at_most", "verdict"),
    [
        (4.0, True, Verdict.MET),
        (4.1, True, Verdict.NOT_MET),
        (4.0, False, Verdict.MET),
        (3.9, False, Verdict.NOT_MET),
        (None, True, Verdict.NOT_MEASURED),
    ],
)
def test_a_goal_is_met_at_its_limit(value: float | None, is_at_most: bool, verdict: Verdict) -> None:
    assert Goal("waste", value, 4.0, "%", is_at_most).verdict == verdict


def test_the_prefix_is_compared_warm_in_process_and_cold_over_http() -> None:
    of = {bar.measure.name: bar.transport for bar in BARS if bar.measure.is_time}
    assert of == {"shared_prefix_warm": Transport.IN_PROCESS, "shared_prefix_cold": Transport.HTTP}
