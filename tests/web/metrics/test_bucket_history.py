"""How observations of a while were spread."""

from __future__ import annotations

from trivet_web.metrics.bucket_history import INTERVAL_S, LENGTH, BucketHistory
from trivet_web.metrics.web_metrics import Series


def totals(*counts: int, total: float = 0.0) -> dict[str, list[Series]]:
    counter = Series("http_requests", ("GET", "/", "200"), 5.0)
    return {"ttft": [Series("ttft", ("m",), total, list(counts))], "http_requests": [counter]}


def test_the_spread_is_what_came_since_then() -> None:
    history = BucketHistory()
    history.observe(0.0, totals(1, 1))
    history.observe(60.0, totals(3, 1, total=2.0))
    length_s, (spread,) = history.spread(60, 120.0, totals(3, 5, total=9.0))
    assert (length_s, spread.name, spread.labels) == (60.0, "ttft", ("m",))
    assert (spread.counts, spread.total) == ([0, 4], 7.0)


def test_a_younger_history_tells_how_long_it_is() -> None:
    history = BucketHistory()
    assert history.spread(300, 5.0, totals(2))[0] == 0.0
    history.observe(10.0, totals(1, 0))
    length_s, (spread,) = history.spread(300, 25.0, totals(1, 3))
    assert (length_s, spread.counts) == (15.0, [0, 3])


def test_a_series_that_began_later_counts_whole() -> None:
    history = BucketHistory()
    history.observe(0.0, {})
    _, (spread,) = history.spread(60, 60.0, totals(2, 3))
    assert spread.counts == [2, 3]


def test_rows_that_come_too_soon_are_left_out_and_an_hour_is_kept() -> None:
    history = BucketHistory()
    for second in range(int(INTERVAL_S * (LENGTH + 10))):
        history.observe(float(second), totals(second))
    now_s = INTERVAL_S * (LENGTH + 10)
    length_s, (spread,) = history.spread(2 * 3600, now_s, totals(int(now_s)))
    assert length_s == INTERVAL_S * LENGTH
    assert spread.counts == [length_s]
