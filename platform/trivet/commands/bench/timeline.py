"""When the tokens of requests came, and the figures that follow from it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median

import numpy as np

PERCENTILES = (50, 90, 99)
Figures = dict[str, float]


@dataclass(slots=True)
class Timeline:
    """One request. Times are of one monotonic clock, in seconds."""

    sent_s: float
    num_prompt_tokens: int
    token_times_s: list[float] = field(default_factory=list)  # of each arrival, ascending
    num_tokens: int = 0  # may exceed the arrivals: one may bring several tokens

    def add(self, at_s: float, num_tokens: int) -> None:
        """`num_tokens` tokens have arrived together."""
        if num_tokens > 0:
            self.token_times_s.append(at_s)
            self.num_tokens += num_tokens

    @property
    def ttft_s(self) -> float:
        """Time to the first token."""
        return self.token_times_s[0] - self.sent_s

    @property
    def e2e_s(self) -> float:
        """Time to the last token."""
        return self.token_times_s[-1] - self.sent_s

    @property
    def tpot_s(self) -> float | None:
        """Mean time per token after the first; None where there is only one."""
        if self.num_tokens < 2:
            return None
        return (self.token_times_s[-1] - self.token_times_s[0]) / (self.num_tokens - 1)

    @property
    def gaps_s(self) -> list[float]:
        """Inter-token latencies (ITL): from each arrival to the next."""
        return [b - a for a, b in zip(self.token_times_s, self.token_times_s[1:], strict=False)]


def figures_of(timelines: Sequence[Timeline]) -> Figures:
    """One run's figures by the names of INTERFACES: rates per second, latencies in ms by percentile."""
    begin = min(timeline.sent_s for timeline in timelines)
    end = max(timeline.token_times_s[-1] for timeline in timelines)
    figures = {
        "output_tokens_per_s": sum(timeline.num_tokens for timeline in timelines) / (end - begin),
        "requests_per_s": len(timelines) / (end - begin),
    }
    series: dict[str, list[float]] = {
        "ttft_ms": [timeline.ttft_s for timeline in timelines],
        "tpot_ms": [tpot for timeline in timelines if (tpot := timeline.tpot_s) is not None],
        "itl_ms": [gap for timeline in timelines for gap in timeline.gaps_s],
        "e2e_ms": [timeline.e2e_s for timeline in timelines],
    }
    for name, values in series.items():
        if values:
            points = np.percentile(np.array(values) * 1e3, PERCENTILES)
            figures |= {f"{name}_p{p}": float(v) for p, v in zip(PERCENTILES, points, strict=True)}
    return figures


def single_stream_figures(timelines: Sequence[Timeline]) -> Figures:
    """Speeds of prefill and decode, meaningful where one request had the machine for itself."""
    prefill = [t.num_prompt_tokens / t.ttft_s for t in timelines]
    decode = [1 / tpot for t in timelines if (tpot := t.tpot_s)]
    figures = {"prefill_tokens_per_s": median(prefill)}
    if decode:
        figures["decode_tokens_per_s"] = median(decode)
    return figures


def medians(runs: Sequence[Mapping[str, float]]) -> Figures:
    """The median of each figure over the runs; figures that a run lacks are left out."""
    names = [name for name in runs[0] if all(name in run for run in runs)]
    return {name: median(run[name] for run in runs) for name in names}


def spreads(runs: Sequence[Mapping[str, float]]) -> dict[str, tuple[float, float]]:
    """Smallest and largest of each figure over the runs: a median alone hides a noisy machine."""
    return {name: (min(run[name] for run in runs), max(run[name] for run in runs)) for name in medians(runs)}


def random_prompt(rng: np.random.Generator, num_tokens: int, first_id: int, last_id: int) -> list[int]:
    """Token ids in [first_id, last_id)."""
    ids: list[int] = rng.integers(first_id, last_id, num_tokens).tolist()
    return ids
