"""Counts that a web process makes itself, summed truthfully over several web processes.

A scrape reaches any one of them. So each writes its totals to a file of its own once a second, and the
one that is asked adds the files of the others to what it has itself: totals never go back, and a
process that ended keeps its share. An instance that has ended is forgotten after a while, in all of them.
(prometheus_client's multiprocess mode: 4 times the cost of an observation, and no collectors of our own.)
With one process there is no file.
"""

from __future__ import annotations

import logging
import os
import secrets
import threading
import time
from bisect import bisect_left
from collections.abc import Callable, Collection, Iterator
from pathlib import Path

import msgspec

from trivet.metrics import METRICS, Metric

logger = logging.getLogger(__name__)
SAVE_INTERVAL_S = 1.0
ENDED_S = 600.0  # after an instance's end its series are still told: every scraper gets its last counts
_SUFFIX = ".totals"


class Series(msgspec.Struct, array_like=True):
    """Totals of one metric with one set of label values. A counter has no buckets."""

    name: str
    labels: tuple[str, ...]
    total: float = 0.0  # a counter's value, or the sum of a histogram's observations
    counts: list[int] = []  # observations in each bucket, the last one beyond all bounds

    def add(self, other: Series) -> None:
        self.total += other.total
        self.counts = [a + b for a, b in zip(self.counts, other.counts, strict=True)]


_Key = tuple[str, tuple[str, ...]]
_INSTANCE_AT = {one.name: one.labels.index("instance") for one in METRICS if "instance" in one.labels}
_decoder = msgspec.msgpack.Decoder(list[Series])


class Recorder:
    """Observations of one series, for who has many of them: nothing is looked up. Thread-safe."""

    __slots__ = ("_bounds", "_lock", "_series")

    def __init__(self, series: Series, bounds: tuple[float, ...], lock: threading.Lock) -> None:
        self._series = series
        self._bounds = bounds
        self._lock = lock  # of the series

    def observe(self, value: float, times: int) -> None:
        """So many of that value."""
        series = self._series
        with self._lock:
            series.counts[bisect_left(self._bounds, value)] += times
            series.total += value * times


class WebMetrics:
    """Thread-safe. `folder` None: this is the only web process."""

    def __init__(self, folder: Path | None = None, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._told = frozenset[str]()  # instances that have series, here or in another process
        self._ended_s: dict[str, float] = {}  # since when each of them is not kept
        self._forgotten = frozenset[str]()
        self._series: dict[_Key, Series] = {}
        self._recorders: dict[_Key, Recorder] = {}
        name = f"{os.getpid()}-{secrets.token_hex(4)}{_SUFFIX}"  # of nobody else, also where a pid is reused
        self._file = folder / name if folder else None
        self._saving = threading.Lock()  # of the file
        self._failure = ""  # of the last save; each is logged once
        self._is_closed = threading.Event()
        if self._file is not None:
            threading.Thread(target=self._save_often, name="metrics", daemon=True).start()

    def count(self, metric: Metric, *labels: str) -> None:
        with self._lock:
            self._get(metric, labels).total += 1

    def observe(self, metric: Metric, labels: tuple[str, ...], value: float, times: int = 1) -> None:
        self.recorder(metric, labels).observe(value, times)

    def recorder(self, metric: Metric, labels: tuple[str, ...]) -> Recorder:
        """The one of that series, which begins with it."""
        key = (metric.name, labels)
        if (recorder := self._recorders.get(key)) is None:
            with self._lock:
                made = Recorder(self._get(metric, labels), metric.buckets, self._lock)
            recorder = self._recorders.setdefault(key, made)
        return recorder

    def totals(self) -> dict[str, list[Series]]:
        """Of all web processes, by metric name."""
        merged: dict[_Key, Series] = {}
        told = set()
        for series in (*self._others(), *self._copy()):
            key = (series.name, series.labels)
            if instance := _instance_of(key):
                told.add(instance)
            if instance in self._forgotten:
                continue
            if key in merged:
                merged[key].add(series)
            else:
                merged[key] = series
        by_name: dict[str, list[Series]] = {}
        for series in merged.values():
            by_name.setdefault(series.name, []).append(series)
        self._told = frozenset(told)
        return by_name

    def keep(self, instance_ids: Collection[str]) -> None:
        """Forget all other instances after a while: a site has new ones for as long as it runs."""
        now_s = self._clock()
        with self._lock:
            ended = self._told - frozenset(instance_ids)
            self._ended_s = {one: self._ended_s.get(one, now_s) for one in ended}
            self._forgotten = frozenset(one for one in ended if now_s - self._ended_s[one] >= ENDED_S)
            for key in [key for key in self._series if _instance_of(key) in self._forgotten]:
                del self._series[key]
                self._recorders.pop(key, None)

    def close(self) -> None:
        self._is_closed.set()
        self.save()

    def _get(self, metric: Metric, labels: tuple[str, ...]) -> Series:
        key = (metric.name, labels)
        if key not in self._series:
            num_buckets = len(metric.buckets) + 1 if metric.buckets else 0
            self._series[key] = Series(metric.name, labels, counts=[0] * num_buckets)
        return self._series[key]

    def _copy(self) -> list[Series]:
        with self._lock:
            return [Series(s.name, s.labels, s.total, list(s.counts)) for s in self._series.values()]

    def _others(self) -> Iterator[Series]:
        if self._file is None:
            return
        for file in self._file.parent.glob(f"*{_SUFFIX}"):
            if file == self._file:
                continue
            try:
                yield from _decoder.decode(file.read_bytes())
            except (OSError, msgspec.MsgspecError) as error:  # cut by a power failure, or removed just now
                logger.debug("file=%s is left out: %s", file, error)

    def _save_often(self) -> None:
        while not self._is_closed.wait(SAVE_INTERVAL_S):
            self.save()

    def save(self) -> None:
        """Write down what this process has, for the others."""
        if self._file is None:
            return
        with self._saving:
            scratch = self._file.with_suffix(".new")
            try:
                scratch.write_bytes(msgspec.msgpack.encode(self._copy()))
                scratch.replace(self._file)
                self._failure = ""
            except OSError as error:  # a full disk; the others learn of this process when there is room
                if str(error) != self._failure:
                    logger.warning("file=%s is not written: %s", self._file, error)
                self._failure = str(error)


def _instance_of(key: _Key) -> str:
    """Empty where the metric is of none."""
    name, labels = key
    place = _INSTANCE_AT.get(name)
    return "" if place is None else labels[place]


def prepare_folder(folder: Path) -> None:
    """Called once before the web processes start: totals begin with them."""
    folder.mkdir(mode=0o700, exist_ok=True)
    for file in folder.glob("*"):
        file.unlink()
