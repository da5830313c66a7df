"""The figures of benchmarks, from known times."""

from __future__ import annotations

import numpy as np
import pytest

from trivet.bench.figures import (
    Slo,
    failures_of,
    figures_of,
    medians,
    single_stream_figures,
    spreads,
)
from trivet.bench.timeline import Timeline
from trivet.errors import GenerationError


def _timeline(due_s: float, *times_s: float, failure: str | None = None) -> Timeline:
    timeline = Timeline(due_s, len(times_s), num_prompt_tokens=100)
    for at_s in times_s:
        timeline.add(at_s, 1)
    if failure is None:
        timeline.finish(times_s[-1])
    else:
        timeline.fail(times_s[-1], failure)
    return timeline


def test_rates_are_over_the_whole_run() -> None:
    figures = figures_of([_timeline(0.0, 1.0, 2.0), _timeline(1.0, 2.0, 4.0)])
    assert figures["duration_s"] == pytest.approx(4.0)
    assert figures["output_tokens_per_s"] == pytest.approx(1.0)
    assert figures["total_tokens_per_s"] == pytest.approx(51.0)
    assert figures["requests_per_s"] == pytest.approx(0.5)
    assert figures["ttft_ms_p50"] == pytest.approx(1000)
    assert figures["e2e_ms_p99"] == pytest.approx(2990)


def test_the_names_are_the_agreed_ones() -> None:
    figures = figures_of([_timeline(0.0, 1.0, 2.0)])
    series = {f"{name}_ms_p{p}" for name in ("ttft", "tpot", "itl", "e2e") for p in (50, 90, 99)}
    assert series < set(figures)
    assert {"output_tokens_per_s", "requests_per_s", "num_failed", "num_short"} < set(figures)
    assert "goodput_requests_per_s" not in figures


def test_percentiles_are_numpys() -> None:
    rng = np.random.default_rng(5)
    ttfts = rng.lognormal(0.0, 1.0, 501)
    figures = figures_of([_timeline(float(i), i + float(t)) for i, t in enumerate(ttfts)])
    for p in (50, 90, 99):
        assert figures[f"ttft_ms_p{p}"] == pytest.approx(np.percentile(ttfts, p) * 1e3)
        assert figures[f"e2e_ms_p{p}"] == pytest.approx(np.percentile(ttfts, p) * 1e3)


def test_failed_requests_are_counted_by_cause_and_bring_no_figures() -> None:
    timelines = [
        _timeline(0.0, 1.0, 2.0),
        _timeline(0.0, 0.1, failure="HTTP 429"),
        _timeline(0.0, 0.1, 0.2, failure="closed"),
        _timeline(0.0, 0.1, failure="HTTP 429"),
    ]
    figures = figures_of(timelines)
    assert (figures["num_requests"], figures["num_failed"]) == (4, 3)
    assert figures["output_tokens"] == 2
    assert figures["ttft_ms_p50"] == pytest.approx(1000)
    assert list(failures_of(timelines).items()) == [("HTTP 429", 2), ("closed", 1)]


def test_a_run_without_an_answer_is_an_error_that_names_the_causes() -> None:
    with pytest.raises(GenerationError, match=r"no request was answered: 2 x HTTP 429"):
        figures_of([_timeline(0.0, 1.0, failure="HTTP 429")] * 2)


def test_short_answers_are_counted() -> None:
    short = _timeline(0.0, 1.0)
    short.max_tokens = 2
    assert figures_of([short, _timeline(0.0, 1.0)])["num_short"] == 1


# Four requests a second apart: TTFT 100, 600, 100, 100 ms; TPOT 50, 50, 200, 50 ms; the last one fails.
TRACE = [
    _timeline(0.0, 0.1, 0.15),
    _timeline(1.0, 1.6, 1.65),
    _timeline(2.0, 2.1, 2.3),
    _timeline(3.0, 3.1, 4.0),
    _timeline(3.0, 3.1, 3.15, failure="closed"),
]


@pytest.mark.parametrize(
    ("slo", "num_good"),
    [
        (Slo(), 4),
        (Slo(ttft=500), 3),
        (Slo(ttft=500, tpot=100), 1),
        (Slo(tpot=100), 2),
        (Slo(e2e=350), 2),
        (Slo(ttft=99), 0),
    ],
)
def test_goodput_counts_what_met_every_limit(slo: Slo, num_good: int) -> None:
    assert figures_of(TRACE, slo)["goodput_requests_per_s"] == pytest.approx(num_good / 4.0)


def test_a_single_stream_tells_prefill_and_decode_apart() -> None:
    figures = single_stream_figures([_timeline(0.0, 0.5, 0.6, 0.7)])
    assert figures["prefill_tokens_per_s"] == pytest.approx(200)
    assert figures["decode_tokens_per_s"] == pytest.approx(10)


def test_medians_and_spreads_are_over_runs() -> None:
    runs = [{"a": 1.0, "b": 1.0}, {"a": 9.0}, {"a": 2.0, "b": 3.0}]
    assert medians(runs) == {"a": 2.0}
    assert spreads(runs) == {"a": (1.0, 9.0)}
