"""The figures of a run, by the names that INTERFACES gives them.

Rates are over the span from the first moment at which the load wanted to send to the end of the last
complete answer. Failed requests bring no tokens and no latency; they are counted, by cause.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median

import numpy as np

from trivet.bench.timeline import Timeline
from trivet.errors import GenerationError

PERCENTILES = (50, 90, 99)
SERIES = ("ttft_ms", "tpot_ms", "itl_ms", "e2e_ms")
Figures = dict[str, float]


@dataclass(frozen=True, slots=True)
class Slo:
    """Limits in ms which a request has to keep, all of them, to count for goodput; None: no limit."""

    ttft: float | None = None
    tpot: float | None = None
    e2e: float | None = None

    def is_met(self, timeline: Timeline) -> bool:
        """A failed request meets nothing; an answer of one token has no TPOT to be late with."""
        if not timeline.is_complete:
            return False
        measured = ((timeline.ttft_s, self.ttft), (timeline.tpot_s, self.tpot), (timeline.e2e_s, self.e2e))
        return all(limit is None or value_s is None or value_s * 1e3 <= limit for value_s, limit in measured)


def figures_of(timelines: Sequence[Timeline], slo: Slo | None = None) -> Figures:
    """One run's figures: rates per second, latencies in ms by percentile, counts.

    Raises: GenerationError naming the causes where no request was answered.
    """
    done = answered(timelines)
    duration_s = max(t.end_s for t in done) - min(t.due_s for t in timelines)
    prompt_tokens = sum(t.num_prompt_tokens for t in done)
    output_tokens = sum(t.num_tokens for t in done)
    figures: Figures = {
        "output_tokens_per_s": output_tokens / duration_s,
        "total_tokens_per_s": (prompt_tokens + output_tokens) / duration_s,
        "requests_per_s": len(done) / duration_s,
    }
    if slo is not None:
        figures["goodput_requests_per_s"] = sum(slo.is_met(t) for t in timelines) / duration_s
    return figures | latencies_of(done) | _counts(timelines, done, duration_s)


def answered(timelines: Sequence[Timeline]) -> list[Timeline]:
    """The complete ones. Raises: GenerationError naming the causes where there is none."""
    done = [timeline for timeline in timelines if timeline.is_complete]
    if not done:
        causes = "; ".join(f"{count} x {cause}" for cause, count in failures_of(timelines).items())
        raise GenerationError(f"no request was answered: {causes or 'the workload is empty'}")
    return done


def latencies_of(done: Sequence[Timeline]) -> Figures:
    """`ttft_ms_p50` ... `e2e_ms_p99`, linearly interpolated; a series without values is left out."""
    series: dict[str, list[float]] = {
        "ttft_ms": [t.ttft_s for t in done],
        "tpot_ms": [tpot for t in done if (tpot := t.tpot_s) is not None],
        "itl_ms": [gap for t in done for gap in t.gaps_s],
        "e2e_ms": [t.e2e_s for t in done],
    }
    figures: Figures = {}
    for name, values_s in series.items():
        figures |= percentiles(name, values_s)
    return figures


def percentiles(name: str, values_s: Sequence[float]) -> Figures:
    """`NAME_p50`, `NAME_p90`, `NAME_p99` in ms of values in seconds; nothing of nothing."""
    if not values_s:
        return {}
    points = np.percentile(np.array(values_s) * 1e3, PERCENTILES)
    return {f"{name}_p{p}": float(v) for p, v in zip(PERCENTILES, points, strict=True)}


def _counts(timelines: Sequence[Timeline], done: Sequence[Timeline], duration_s: float) -> Figures:
    return {
        "duration_s": duration_s,
        "num_requests": len(timelines),
        "num_failed": len(timelines) - len(done),
        "num_short": sum(t.num_tokens < t.max_tokens for t in done),
        "prompt_tokens": sum(t.num_prompt_tokens for t in done),
        "cached_prompt_tokens": sum(t.num_cached_tokens for t in done),
        "output_tokens": sum(t.num_tokens for t in done),
        **percentiles("send_lag_ms", [t.lag_s for t in timelines if t.sent_s is not None]),
    }


def single_stream_figures(timelines: Sequence[Timeline]) -> Figures:
    """Speeds of prefill and decode, meaningful where one request had the machine for itself."""
    done = [timeline for timeline in timelines if timeline.is_complete]
    prefill = [t.num_prompt_tokens / t.ttft_s for t in done]
    decode = [1 / tpot for t in done if (tpot := t.tpot_s)]
    figures = {"prefill_tokens_per_s": median(prefill)}
    if decode:
        figures["decode_tokens_per_s"] = median(decode)
    return figures


def failures_of(timelines: Sequence[Timeline]) -> dict[str, int]:
    """How often each cause ended a request, most often first."""
    return dict(Counter(t.failure for t in timelines if t.failure is not None).most_common())


def medians(runs: Sequence[Mapping[str, float]]) -> Figures:
    """The median of each figure over the runs; figures that a run lacks are left out."""
    names = [name for name in runs[0] if all(name in run for run in runs)]
    return {name: median(run[name] for run in runs) for name in names}


def spreads(runs: Sequence[Mapping[str, float]]) -> dict[str, tuple[float, float]]:
    """Smallest and largest of each figure over the runs: a median alone hides a noisy machine."""
    return {name: (min(run[name] for run in runs), max(run[name] for run in runs)) for name in medians(runs)}
