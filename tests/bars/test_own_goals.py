"""Goals that need no peer."""

from __future__ import annotations

import pytest
from trivet_bars.bars import Verdict
from trivet_bars.engines import TRIVET
from trivet_bars.limits import Limits
from trivet_bars.own_goals import DEFAULT, OwnFigures, goals_of, thread_counts
from trivet_bars.rounds import Sample

LIMITS = Limits(20.0, 800.0, 400.0)
HOST = {
    "host_ms_1": 0.2,
    "host_ms_32": 1.0,
    "host_ms_32_waiting": 1.05,
    "gap_ms_1": 0.02,
    "gap_ms_32": 1.6,
    "weights_bytes": 96e6,
    "kv_bytes_per_token": 20833.333,
}
STARTUP = {
    "startup_s": 1.7,
    "ready_s": 1.2,
    "rss_after_first_token_bytes": 1.31e9,
    "rss_after_imports_bytes": 60e6,
    "memory_kv_bytes": 1e9,
    "memory_weights_bytes": 200e6,
    "memory_logits_bytes": 30e6,
}
MIXED = {"kv_waste_percent": 2.0, "kv_sequences_fit": 100.0, "kv_sequences_fit_contiguous": 5.0}


def samples(measure: str, figure: str, *values: float) -> list[Sample]:
    return [Sample(TRIVET, measure, number, 0.0, {figure: value}) for number, value in enumerate(values)]


def goal_values(own: OwnFigures, inside: list[Sample], outside: list[Sample]) -> dict[str, float | None]:
    return {goal.title: goal.value for goal in goals_of(inside, outside, LIMITS, own)}


def test_the_bound_by_bandwidth_counts_weights_and_the_keys_and_values_of_the_context() -> None:
    """20 GB/s by 96 MB + 192 tokens of 20.8 kB = 100 MB: 200 tokens/s."""
    inside = samples("one_stream", "decode_tokens_per_s", 160.0)
    values = goal_values(OwnFigures(HOST, {}, {}), inside, [])
    assert values["one stream, of the bound by bandwidth"] == pytest.approx(80.0)


def test_sampling_is_compared_round_by_round() -> None:
    inside = samples("at_once_32", "output_tokens_per_s", 100.0, 50.0, 100.0)
    inside += samples("at_once_32_sampled", "output_tokens_per_s", 98.0, 49.0, 98.0)
    values = goal_values(OwnFigures({}, {}, {}), inside, [])
    assert values["sampled slower than greedy, in process, 32 at once"] == pytest.approx(2.0)


def test_http_is_compared_with_in_process() -> None:
    inside = samples("at_once_32", "output_tokens_per_s", 1000.0)
    outside = samples("at_once_32", "output_tokens_per_s", 930.0)
    values = goal_values(OwnFigures({}, {}, {}), inside, outside)
    assert values["32 at once over HTTP, of in process"] == pytest.approx(93.0)


def test_only_what_the_kernels_wait_for_is_held_against_host_work() -> None:
    goals = {goal.title: goal for goal in goals_of([], [], None, OwnFigures(HOST, {}, {}))}
    one = goals["host work between the kernels of two steps, batch 1"]
    many = goals["host work between the kernels of two steps, batch 32"]
    assert (one.verdict, one.note) == (Verdict.MET, "0.20 ms of host work in all")
    assert many.verdict == Verdict.NOT_MET


def test_a_crowded_queue_is_compared_with_an_empty_one() -> None:
    values = goal_values(OwnFigures(HOST, {}, {}), [], [])
    assert values["host work with 10,000 waiting: more"] == pytest.approx(5.0)


def test_memory_beside_kv_and_what_of_it_has_no_name() -> None:
    goals = {goal.title: goal for goal in goals_of([], [], None, OwnFigures({}, STARTUP, {}))}
    assert goals["resident beside KV"].value == pytest.approx(310.0)
    assert "weights 200" in goals["resident beside KV"].note
    assert goals["of it without a name"].value == pytest.approx(20.0)


def test_waste_tells_how_many_sequences_fit() -> None:
    (goal,) = [g for g in goals_of([], [], None, OwnFigures({}, {}, MIXED)) if "waste" in g.title]
    assert goal.verdict == Verdict.MET
    assert goal.note == "100 such sequences fit, 5 with contiguous reservation"


def test_what_was_not_measured_is_not_met_by_silence() -> None:
    goals = goals_of([], [], None, OwnFigures({}, {}, {}))
    assert {goal.verdict for goal in goals} == {Verdict.NOT_MEASURED}


@pytest.mark.parametrize(("default", "verdict"), [(92.0, Verdict.MET), (88.0, Verdict.NOT_MET)])
def test_the_default_number_of_threads_is_compared_with_the_best(default: float, verdict: Verdict) -> None:
    own = OwnFigures({}, {}, {}, {DEFAULT: default, "1": 100.0, "2": 60.0})
    (goal,) = [g for g in goals_of([], [], None, own) if "num_threads" in g.title]
    assert (goal.value, goal.verdict) == (pytest.approx(default), verdict)


def test_threads_are_tried_from_one_to_all() -> None:
    assert [thread_counts(count) for count in (1, 2, 6, 8)] == [[1], [1, 2], [1, 2, 4, 6], [1, 2, 4, 8]]
