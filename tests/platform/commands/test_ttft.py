"""What a slow first token is put down to."""

from __future__ import annotations

import pytest

from trivet.client.observations import History, Series
from trivet.commands.ttft import PARTS, PROMPT_TOKENS, TTFT, explain


def history(
    tokenize_s: float, queue_s: float, prefill_s: float, prompt_tokens: float = 900.0, **figures: float
) -> History:
    """Ten requests, with so many seconds each; two samples, the first before them."""
    sums = dict(zip(PARTS.values(), (tokenize_s, queue_s, prefill_s), strict=True))
    sums |= {TTFT: tokenize_s + queue_s + prefill_s, PROMPT_TOKENS: prompt_tokens}
    counters = {f"{name}_sum": (5.0, 5.0 + 10 * value) for name, value in sums.items()}
    counters |= {f"{name}_count": (3.0, 13.0) for name in sums}
    counters |= {name: (0.0, value) for name, value in figures.items()}
    series = [Series(name=name, labels={}, values=values) for name, values in counters.items()]
    return History(interval_s=1, times=(1.0, 2.0), series=tuple(series))


@pytest.mark.parametrize(
    ("given", "cause", "cure"),
    [
        (history(0.4, 0.1, 0.2), "tokenizer take longest, for prompts of 900", "web_workers"),
        (history(0.4, 0.1, 0.2, 3.0), "the first request of a web process waits", "where later requests are"),
        (
            history(0.1, 0.9, 0.2, num_requests_running=8, num_requests_waiting=5, kv_cache_usage_perc=0.3),
            "up to 5 waited while 8 ran, with 30%",
            "raise max_num_seqs",
        ),
        (history(0.1, 0.9, 0.2, kv_cache_usage_perc=0.97), "97% of the KV cache", "more memory"),
        (
            history(0.1, 0.1, 0.9, prefix_cache_queries_total=100, prefix_cache_hits_total=5),
            "5% of what was looked up",
            "at their beginning",
        ),
        (
            history(0.1, 0.1, 0.9, prefix_cache_queries_total=100, prefix_cache_hits_total=50),
            "50% of what was looked up",
            "faster device",
        ),
    ],
)
def test_the_largest_part_names_cause_and_cure(given: History, cause: str, cure: str) -> None:
    verdict = explain(given)
    assert verdict is not None
    assert cause in verdict.cause
    assert cure in verdict.cure


def test_means_are_of_the_window_only() -> None:
    verdict = explain(history(0.1, 0.2, 0.3))
    assert verdict is not None
    assert verdict.num_requests == 10
    assert verdict.ttft_s == pytest.approx(0.6)
    assert [*verdict.parts_s.values()] == pytest.approx([0.1, 0.2, 0.3])


def test_a_series_that_appears_within_the_window_began_at_nothing() -> None:
    names = (f"{TTFT}_count", f"{TTFT}_sum")
    series = tuple(Series(name=name, values=(None, 2.0, 4.0)) for name in names)
    verdict = explain(History(interval_s=1, times=(1.0, 2.0, 3.0), series=series))
    assert verdict is not None
    assert verdict.num_requests == 4


def test_without_requests_there_is_nothing_to_explain() -> None:
    assert explain(History(interval_s=1)) is None
