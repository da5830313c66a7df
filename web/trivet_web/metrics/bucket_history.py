"""How observations of the last hour were spread: totals of every histogram each 15 s, to take apart."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from trivet_web.metrics.web_metrics import Series

INTERVAL_S = 15.0
LENGTH = 4 * 60 + 1  # an hour
_Key = tuple[str, tuple[str, ...]]
_Row = dict[_Key, tuple[list[int], float]]  # counts by bucket, sum of the values


@dataclass(frozen=True, slots=True)
class Spread:
    """Observations of one series."""

    name: str
    labels: tuple[str, ...]
    counts: list[int]
    total: float


class BucketHistory:
    """Thread-safe. Totals never go back (web_metrics.py)."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._rows: deque[tuple[float, _Row]] = deque(maxlen=LENGTH)

    def observe(self, now_s: float, totals: Mapping[str, Iterable[Series]]) -> None:
        """As often as one likes; what comes too soon is left out."""
        with self._lock:
            if not self._rows or now_s - self._rows[-1][0] >= INTERVAL_S:
                self._rows.append((now_s, _row(totals)))

    def spread(
        self, window_s: float, now_s: float, totals: Mapping[str, Iterable[Series]]
    ) -> tuple[float, list[Spread]]:
        """Since `window_s` ago, or the nearest row before it: how long that is, and each series."""
        newest = _row(totals)
        with self._lock:
            earlier = [row for row in self._rows if row[0] <= now_s - window_s]
            since_s, oldest = earlier[-1] if earlier else self._rows[0] if self._rows else (now_s, {})
        found = []
        for (name, labels), (counts, total) in sorted(newest.items()):
            before, sum_before = oldest.get((name, labels), ([0] * len(counts), 0.0))
            counts = [after - one for after, one in zip(counts, before, strict=True)]
            found.append(Spread(name, labels, counts, total - sum_before))
        return now_s - since_s, found


def _row(totals: Mapping[str, Iterable[Series]]) -> _Row:
    return {
        (series.name, tuple(series.labels)): (list(series.counts), series.total)
        for each in totals.values()
        for series in each
        if series.counts
    }
