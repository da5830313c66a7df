"""Runs of one workload, repeated: the first warms up, the others are measured."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np
from tqdm import tqdm

from trivet.bench.arrivals import Arrivals
from trivet.bench.figures import (
    Figures,
    Slo,
    answered,
    failures_of,
    figures_of,
    medians,
    single_stream_figures,
    spreads,
)
from trivet.bench.prompts import Form
from trivet.bench.timeline import Timeline
from trivet.bench.workload import Seeds, Workload, WorkloadOfRun

WARM_UP_TOKENS = 16  # of each answer: enough to have met every batch size


@dataclass(frozen=True, slots=True)
class LoadRun:
    """What one run brought. `extra`: figures that only this kind of load can measure."""

    timelines: list[Timeline]
    extra: Figures


class Load(Protocol):
    """Something that answers prompts: a server, or an engine in this process."""

    form: Form  # of the prompts that it takes
    id_range: tuple[int, int]  # of token ids: the first, and the one behind the last

    def run(
        self,
        workload: Workload,
        arrivals: Arrivals,
        rng: np.random.Generator,
        on_done: Callable[[], object],
    ) -> LoadRun:
        """Ask everything and wait for the answers. `rng`: of the arrivals. `on_done`: after each."""


@dataclass(frozen=True, slots=True)
class Scenario:
    """A load and how it is measured."""

    name: str
    workload_of: WorkloadOfRun
    arrivals: Arrivals
    slo: Slo | None = None

    @property
    def is_single_stream(self) -> bool:
        """One request has the machine for itself."""
        return self.arrivals.concurrency == 1 and self.arrivals.rate is None


@dataclass(frozen=True, slots=True)
class Measured:
    """The runs of a scenario."""

    runs: list[Figures]
    failures: dict[str, int]  # how often each cause ended a request, over all measured runs
    is_counted_by_server: bool

    @property
    def figures(self) -> Figures:
        """Medians over the runs."""
        return medians(self.runs)

    def as_json(self) -> dict[str, object]:
        """Keys of the package's docstring."""
        count = "usage" if self.is_counted_by_server else "arrivals: the server sent no usage"
        return {
            **{name: rounded(value) for name, value in self.figures.items()},
            "num_runs": len(self.runs),
            "spread": {name: [rounded(x) for x in ends] for name, ends in spreads(self.runs).items()},
            "failures": self.failures,
            "tokens_counted_by": count,
        }


def measure(load: Load, scenario: Scenario, seeds: Seeds, repeats: int) -> Measured:
    """One short run to warm up, then `repeats` that count, with a progress bar on a terminal.

    Raises: GenerationError where a run has no answer at all.
    """
    warm_up = _shortened(scenario.workload_of(0))
    _one_run(load, scenario, warm_up, seeds, 0)
    runs: list[Figures] = []
    causes: Counter[str] = Counter()
    is_counted = True
    for run in range(1, repeats + 1):
        done = _one_run(load, scenario, scenario.workload_of(run), seeds, run)
        figures = figures_of(done.timelines, scenario.slo) | done.extra
        if scenario.is_single_stream:
            figures = single_stream_figures(done.timelines) | figures
        runs.append(figures)
        causes.update(failures_of(done.timelines))
        is_counted &= all(t.is_counted_by_server for t in done.timelines if t.is_complete)
    return Measured(runs, dict(causes.most_common()), is_counted)


def _one_run(load: Load, scenario: Scenario, workload: Workload, seeds: Seeds, run: int) -> LoadRun:
    label = f"{scenario.name} {'warm-up' if run == 0 else f'run {run}'}"
    with tqdm(total=workload.num_requests, desc=label, unit="req", disable=None, leave=False) as bar:
        done = load.run(workload, scenario.arrivals, seeds.arrivals(run), bar.update)
    answered(done.timelines)  # a server that answers nothing is told at once, not after all runs
    return done


def _shortened(workload: Workload) -> Workload:
    talks = tuple(
        tuple(replace(turn, max_tokens=min(turn.max_tokens, WARM_UP_TOKENS)) for turn in turns)
        for turns in workload.conversations
    )
    return Workload(talks, workload.warm_up)


def rounded(value: float) -> float:
    """Whole above 100,000, else three decimals: what a reader can use."""
    return round(value) if abs(value) >= 1e5 else round(value, 3)
