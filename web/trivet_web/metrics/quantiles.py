"""Quantiles of latencies over the last minute, as figures of the history.

Who draws them over a day could not make them of what a history keeps: quantiles cannot be merged, and the
buckets that they come from would be 20 times as many series.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

from trivet import metrics
from trivet_web.metrics.bucket_history import Spread
from trivet_web.metrics.history import Sample

WINDOW_S = 60.0
SHARES: Mapping[str, float] = {"p50": 0.5, "p95": 0.95, "p99": 0.99}
_OF = {one.name: one for one in (metrics.TIME_TO_FIRST_TOKEN, metrics.INTER_TOKEN_LATENCY)}


def quantile_samples(spreads: Iterable[Spread]) -> Iterator[Sample]:
    """NAME_p50, _p95, _p99 of each deployment, and of all together without labels; none without requests."""
    merged: dict[tuple[str, tuple[str, ...]], list[int]] = {}
    for spread in spreads:
        if (metric := _OF.get(spread.name)) is None:
            continue
        model_name = dict(zip(metric.labels, spread.labels, strict=True))["model_name"]
        groups: tuple[tuple[str, ...], ...] = ((), ("model_name", model_name))
        for labels in groups:
            counts = merged.setdefault((spread.name, labels), [0] * len(spread.counts))
            merged[spread.name, labels] = [a + b for a, b in zip(counts, spread.counts, strict=True)]
    for (name, labels), counts in merged.items():
        for suffix, share in SHARES.items():
            value = quantile(share, _OF[name].buckets, counts)
            if value is not None:
                yield Sample(f"{name}_{suffix}", labels, value, is_counter=False)


def quantile(share: float, bounds: Sequence[float], counts: Sequence[int]) -> float | None:
    """Linear within a bucket, as Prometheus has it; None without observations.

    Of what lies beyond all bounds, the last of them: more is not known.
    """
    rank = share * sum(counts)
    if rank == 0:
        return None
    below, lower = 0, 0.0
    for bound, count in zip(bounds, counts, strict=False):  # the last count is beyond all bounds
        if below + count >= rank:
            return lower + (bound - lower) * (rank - below) / count
        below, lower = below + count, bound
    return bounds[-1]
