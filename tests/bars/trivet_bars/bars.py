"""The bars: by how much Trivet has to beat the best peer of a run, and what it has to keep by itself.

They are those of the project's goal for the CPU, for SmolLM2-135M with 4-bit weights on 2 threads.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from statistics import median

from trivet_bars.ladder import MEASURES, Measure


class Transport(StrEnum):
    """How an engine is asked. Engines are compared within one transport only."""

    IN_PROCESS = "in process"
    HTTP = "HTTP"


class Verdict(StrEnum):
    """Of a bar in one run."""

    MET = "met"
    NOT_MET = "not met"
    NOT_MEASURED = "not measured"


@dataclass(frozen=True, slots=True)
class Bar:
    """Trivet has to be `factor` times as fast as the best peer."""

    transport: Transport
    measure: Measure
    factor: float


BARS = tuple(
    Bar(transport, MEASURES[name], factor)
    for transport, name, factor in (
        (Transport.IN_PROCESS, "one_stream", 1.6),
        (Transport.IN_PROCESS, "prefill_1024", 1.25),
        (Transport.IN_PROCESS, "at_once_16", 1.5),
        (Transport.IN_PROCESS, "at_once_32", 1.5),
        (Transport.IN_PROCESS, "shared_prefix_warm", 1.5),
        (Transport.HTTP, "one_stream", 1.6),
        (Transport.HTTP, "prefill_1024", 1.5),
        (Transport.HTTP, "at_once_16", 1.9),
        (Transport.HTTP, "at_once_32", 1.9),
        (Transport.HTTP, "shared_prefix_cold", 1.5),
    )
)


@dataclass(frozen=True, slots=True)
class Outcome:
    """A bar against the samples of one run. `ratio` above 1: Trivet is the faster one."""

    bar: Bar
    trivet: float | None = None
    peer: float | None = None
    peer_name: str | None = None
    ratio: float | None = None

    @property
    def verdict(self) -> Verdict:
        if self.ratio is None:
            return Verdict.NOT_MEASURED
        return Verdict.MET if self.ratio >= self.bar.factor else Verdict.NOT_MET


def judge(bar: Bar, trivet: Sequence[float], peers: Mapping[str, Sequence[float]]) -> Outcome:
    """Compare with the peer whose median is best.

    The ratio is the median over the rounds of the ratio in a round: what slows the machine for a while slows
    both engines of that round.

    Args:
        trivet: the figure in each round.
        peers: the same by peer; peers that were not measured are left out.
    """
    measured = {name: samples for name, samples in peers.items() if samples}
    if not trivet or not measured:
        return Outcome(bar, median(trivet) if trivet else None)
    best = min if bar.measure.is_time else max
    name = best(measured, key=lambda name: median(measured[name]))
    ratios = [
        theirs / ours if bar.measure.is_time else ours / theirs
        for ours, theirs in zip(trivet, measured[name], strict=False)
    ]
    return Outcome(bar, median(trivet), median(measured[name]), name, median(ratios))


@dataclass(frozen=True, slots=True)
class Goal:
    """What Trivet has to keep without any peer; `value` None: not measured, and `note` says why."""

    title: str
    value: float | None
    limit: float
    unit: str
    is_at_most: bool = True
    note: str = ""

    @property
    def verdict(self) -> Verdict:
        if self.value is None:
            return Verdict.NOT_MEASURED
        is_kept = self.value <= self.limit if self.is_at_most else self.value >= self.limit
        return Verdict.MET if is_kept else Verdict.NOT_MET
