"""The newest samples of every figure: one a second for 15 minutes, one in 15 s for a day.

Counters are kept as they are, cumulative, so that whoever draws them chooses the interval of a rate.
A series that is not sampled has gaps (NaN), and is forgotten once it has none but gaps, or once
`MAX_ENDED` others have ended after it: a series takes 53 KB, and an instance has about 40.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

FINE_S, FINE_LENGTH = 1, 15 * 60
COARSE_S, COARSE_LENGTH = 15, 24 * 60 * 4
MAX_ENDED = 800  # series that are no longer sampled


class Sample(NamedTuple):
    """One figure now."""

    name: str  # of metrics.METRICS, without the prefix
    labels: tuple[str, ...]
    value: float
    is_counter: bool


@dataclass(frozen=True, slots=True)
class Series:
    """One figure over time; NaN where it was not sampled."""

    name: str
    labels: tuple[str, ...]
    is_counter: bool
    values: NDArray[np.float64]  # [num_samples]


_Key = tuple[str, tuple[str, ...]]


class Ring:
    """`length` rows of all series, the oldest overwritten."""

    def __init__(self, length: int) -> None:
        self._times_s = np.full(length, np.nan)
        self._values: dict[_Key, NDArray[np.float64]] = {}
        self._sampled: dict[_Key, int] = {}  # the newest row in which each has a value
        self._num_rows = 0

    def append(self, now_s: float, row: dict[_Key, float]) -> None:
        length = len(self._times_s)
        at = self._num_rows % length
        self._times_s[at] = now_s
        for key in row.keys() - self._values.keys():
            self._values[key] = np.full(length, np.nan)
        for key, values in self._values.items():
            values[at] = row.get(key, np.nan)
        self._sampled |= dict.fromkeys(row, self._num_rows)
        self._num_rows += 1
        ended = sorted(self._values.keys() - row.keys(), key=self._sampled.__getitem__, reverse=True)
        for place, key in enumerate(ended):
            if place >= MAX_ENDED or self._sampled[key] < self._num_rows - length:
                del self._values[key], self._sampled[key]

    def last(self, count: int) -> tuple[NDArray[np.float64], dict[_Key, NDArray[np.float64]]]:
        """Times `[n]` and values `[n]` of each series, oldest first, n at most `count`."""
        length = len(self._times_s)
        n = min(count, self._num_rows, length)
        order = np.arange(self._num_rows - n, self._num_rows) % length
        return self._times_s[order], {key: values[order] for key, values in self._values.items()}


class History:
    """Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._fine, self._coarse = Ring(FINE_LENGTH), Ring(COARSE_LENGTH)
        self._counters: set[str] = set()
        self._num_samples = 0

    def append(self, now_s: float, samples: Iterable[Sample]) -> None:
        """Once a second; `now_s` is seconds since the epoch."""
        with self._lock:
            row: dict[_Key, float] = {}
            for name, labels, value, is_counter in samples:
                row[name, labels] = value
                if is_counter:
                    self._counters.add(name)
            self._fine.append(now_s, row)
            self._num_samples += 1
            if self._num_samples % (COARSE_S // FINE_S) == 0:
                self._coarse.append(now_s, self._condensed())

    def read(self, window_s: int) -> tuple[int, list[float], list[Series]]:
        """Interval in seconds, times since the epoch, series; of the last `window_s`."""
        with self._lock:
            is_fine = window_s <= FINE_LENGTH * FINE_S
            interval_s = FINE_S if is_fine else COARSE_S
            times, values = (self._fine if is_fine else self._coarse).last(-(-window_s // interval_s))
            series = [
                Series(name, labels, name in self._counters, found)
                for (name, labels), found in sorted(values.items())
                if not np.isnan(found).all()
            ]
            return interval_s, times.tolist(), series

    def _condensed(self) -> dict[_Key, float]:
        """Of the newest fine samples: a counter's last, a gauge's mean."""
        _, values = self._fine.last(COARSE_S // FINE_S)
        row: dict[_Key, float] = {}
        for key, found in values.items():
            known = found[~np.isnan(found)]
            if len(known):
                row[key] = float(known[-1] if key[0] in self._counters else known.mean())
        return row
