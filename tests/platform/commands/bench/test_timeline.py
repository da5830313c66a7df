"""The figures of benchmarks, from known times."""

from __future__ import annotations

import numpy as np
import pytest

from trivet.commands.bench.timeline import (
    Timeline,
    figures_of,
    medians,
    random_prompt,
    single_stream_figures,
    spreads,
)


def _timeline(sent_s: float, *times_s: float, tokens: int = 1) -> Timeline:
    timeline = Timeline(sent_s, 100)
    for at_s in times_s:
        timeline.add(at_s, tokens)
    return timeline


def test_a_request_has_ttft_tpot_gaps_and_end() -> None:
    timeline = _timeline(10.0, 10.5, 10.6, 10.8)
    assert timeline.ttft_s == pytest.approx(0.5)
    assert timeline.e2e_s == pytest.approx(0.8)
    assert timeline.tpot_s == pytest.approx(0.15)
    assert timeline.gaps_s == pytest.approx([0.1, 0.2])


def test_several_tokens_of_one_arrival_count_each() -> None:
    timeline = _timeline(0.0, 1.0, 2.0, tokens=4)
    assert timeline.num_tokens == 8
    assert timeline.tpot_s == pytest.approx(1 / 7)
    assert timeline.gaps_s == [1.0]


def test_an_arrival_without_tokens_is_none() -> None:
    timeline = Timeline(0.0, 1)
    timeline.add(1.0, 0)
    assert timeline.token_times_s == []


def test_one_token_has_no_tpot() -> None:
    assert _timeline(0.0, 1.0).tpot_s is None
    assert not [name for name in figures_of([_timeline(0.0, 1.0)]) if name.startswith(("tpot", "itl"))]


def test_rates_are_over_the_whole_run() -> None:
    figures = figures_of([_timeline(0.0, 1.0, 2.0), _timeline(1.0, 2.0, 4.0)])
    assert figures["output_tokens_per_s"] == pytest.approx(1.0)
    assert figures["requests_per_s"] == pytest.approx(0.5)
    assert figures["ttft_ms_p50"] == pytest.approx(1000)
    assert figures["e2e_ms_p99"] == pytest.approx(2990)


def test_the_names_are_the_agreed_ones() -> None:
    figures = figures_of([_timeline(0.0, 1.0, 2.0)])
    series = [f"{name}_ms_p{p}" for name in ("ttft", "tpot", "itl", "e2e") for p in (50, 90, 99)]
    assert set(figures) == {"output_tokens_per_s", "requests_per_s", *series}


def test_a_single_stream_tells_prefill_and_decode_apart() -> None:
    figures = single_stream_figures([_timeline(0.0, 0.5, 0.6, 0.7)])
    assert figures["prefill_tokens_per_s"] == pytest.approx(200)
    assert figures["decode_tokens_per_s"] == pytest.approx(10)


def test_medians_and_spreads_are_over_runs() -> None:
    runs = [{"a": 1.0, "b": 1.0}, {"a": 9.0}, {"a": 2.0, "b": 3.0}]
    assert medians(runs) == {"a": 2.0}
    assert spreads(runs) == {"a": (1.0, 9.0)}


def test_prompts_are_of_their_length_and_differ_with_the_seed() -> None:
    one = random_prompt(np.random.default_rng(1), 64, 300, 8000)
    two = random_prompt(np.random.default_rng(2), 64, 300, 8000)
    assert len(one) == 64
    assert one != two
    assert min(one) >= 300
    assert max(one) < 8000
