"""The rings behind the console's charts."""

from __future__ import annotations

import math

from trivet_web.metrics.history import COARSE_LENGTH, COARSE_S, FINE_LENGTH, MAX_ENDED, History, Sample


def gauge(value: float, name: str = "running") -> Sample:
    return Sample(name, ("instance", "i"), value, is_counter=False)


def counter(value: float) -> Sample:
    return Sample("tokens_total", ("instance", "i"), value, is_counter=True)


def test_seconds_are_kept_for_a_quarter_of_an_hour() -> None:
    history = History()
    for second in range(FINE_LENGTH + 50):
        history.append(float(second), [gauge(second)])
    interval_s, times, (series,) = history.read(FINE_LENGTH)
    assert interval_s == 1
    assert times == [float(second) for second in range(50, FINE_LENGTH + 50)]
    assert series.values.tolist() == times


def test_a_day_has_the_mean_of_gauges_and_the_last_of_counters() -> None:
    history = History()
    for second in range(2 * COARSE_S):
        history.append(float(second), [gauge(second), counter(100 + second)])
    interval_s, times, found = history.read(COARSE_LENGTH * COARSE_S)
    values = {series.name: series.values.tolist() for series in found}
    assert (interval_s, times) == (COARSE_S, [14.0, 29.0])
    assert values == {"running": [7.0, 22.0], "tokens_total": [114.0, 129.0]}
    assert {series.name: series.is_counter for series in found} == {"running": False, "tokens_total": True}


def test_what_is_not_sampled_is_a_gap_and_is_forgotten_when_nothing_is_left_of_it() -> None:
    history = History()
    history.append(0.0, [gauge(1)])
    history.append(1.0, [gauge(2, "other")])
    series = {one.name: one.values.tolist() for one in history.read(10)[2]}
    assert series["running"][0] == 1
    assert math.isnan(series["running"][1])
    for second in range(2 * FINE_LENGTH):
        history.append(2.0 + second, [gauge(3, "other")])
    assert [one.name for one in history.read(FINE_LENGTH)[2]] == ["other"]


def test_of_series_that_have_ended_the_newest_are_kept() -> None:
    history = History()
    for second in range(MAX_ENDED + 20):
        history.append(float(second), [gauge(1, "alive"), gauge(1, f"once {second}")])
    kept = {one.name for one in history.read(FINE_LENGTH)[2]}
    assert len(kept) == 1 + 1 + MAX_ENDED
    assert {"alive", "once 20", f"once {MAX_ENDED + 19}"} <= kept
    assert "once 0" not in kept
