"""What follows from the times at which a request's tokens came."""

from __future__ import annotations

import pytest

from trivet.bench.timeline import Timeline


def _timeline(due_s: float, *times_s: float, tokens: int = 1) -> Timeline:
    timeline = Timeline(due_s, 100)
    for at_s in times_s:
        timeline.add(at_s, tokens)
    timeline.finish(times_s[-1])
    return timeline


def test_a_request_has_ttft_tpot_gaps_and_end() -> None:
    timeline = _timeline(10.0, 10.5, 10.6, 10.8)
    assert timeline.ttft_s == pytest.approx(0.5)
    assert timeline.e2e_s == pytest.approx(0.8)
    assert timeline.tpot_s == pytest.approx(0.15)
    assert timeline.gaps_s == pytest.approx([0.1, 0.2])


def test_latencies_count_from_when_it_was_due_and_not_from_when_it_was_sent() -> None:
    timeline = Timeline(10.0, 1, sent_s=13.0)
    timeline.add(13.5, 1)
    timeline.finish(13.5)
    assert timeline.ttft_s == pytest.approx(3.5)
    assert timeline.e2e_s == pytest.approx(3.5)
    assert timeline.lag_s == pytest.approx(3.0)


def test_several_tokens_of_one_arrival_count_each() -> None:
    timeline = _timeline(0.0, 1.0, 2.0, tokens=4)
    assert timeline.num_tokens == 8
    assert timeline.tpot_s == pytest.approx(1 / 7)
    assert timeline.gaps_s == [1.0]


def test_an_arrival_without_tokens_is_none() -> None:
    timeline = Timeline(0.0, 1)
    timeline.add(1.0, 0)
    assert timeline.token_times_s == []


def test_an_answer_without_visible_text_arrives_at_its_end() -> None:
    timeline = Timeline(1.0, 4, num_tokens=4)
    timeline.finish(3.0)
    assert timeline.ttft_s == pytest.approx(2.0)
    assert timeline.gaps_s == []


def test_tokens_after_the_last_visible_text_count_in_the_time_per_token() -> None:
    timeline = Timeline(0.0, 3)
    timeline.add(1.0, 1)
    timeline.num_tokens = 3  # the server's count: two more that show nothing
    timeline.finish(5.0)
    assert timeline.tpot_s == pytest.approx(2.0)


def test_one_token_has_no_tpot() -> None:
    assert _timeline(0.0, 1.0).tpot_s is None


def test_the_first_cause_of_a_failure_stays() -> None:
    timeline = Timeline(0.0, 1)
    timeline.fail(1.0, "the server said no")
    timeline.fail(2.0, "the connection was closed")
    assert timeline.failure == "the server said no"
    assert not timeline.is_complete


def test_what_is_complete_cannot_fail_any_more() -> None:
    timeline = _timeline(0.0, 1.0)
    timeline.fail(2.0, "the connection was closed")
    assert timeline.is_complete
