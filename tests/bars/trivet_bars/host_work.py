"""Trivet's host work between kernels: `python -m trivet_bars.host_work MODEL KEY=VALUE...`.

The native functions of the runner's library are timed from outside; what a decode step takes besides them is
host work: scheduling, building the batch, Python around the calls, committing, text. Most of it is done while
the kernels compute; how long they wait for it between two steps is told by itself. Prints one JSON line.
"""

from __future__ import annotations

import ctypes
import json
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from statistics import median
from typing import Any

from trivet.commands.connecting import parse_pairs
from trivet.engine.assembly import Engine
from trivet.engine.sequence import Sequence
from trivet.llm import LLM
from trivet.sampling_params import SamplingParams
from trivet.text.text_stream import TextStream

BATCH = 32
WAITING = 10_000
STEPS = 64
PROMPT_TOKENS = 32
FIRST_ID = 1000


class NativeClock:
    """Counts the time inside every function of the libraries that a runner holds."""

    def __init__(self, runner: object) -> None:
        self.inside_s = 0.0
        libraries = [value for value in vars(runner).values() if isinstance(value, ctypes.CDLL)]
        if not libraries:
            raise SystemExit(
                f"{type(runner).__name__} holds no native library; nothing is to be told from it"
            )
        for library in libraries:
            for name, function in list(vars(library).items()):
                if callable(function) and not name.startswith("_"):
                    setattr(library, name, self._timed(function))

    def _timed(self, function: Callable[..., object]) -> Callable[..., object]:
        def call(*arguments: object) -> object:
            start = time.perf_counter()
            try:
                return function(*arguments)
            finally:
                self.inside_s += time.perf_counter() - start

        return call


class StepClock:
    """When the kernels of each step began and ended, as the runner's stream has written it down."""

    def __init__(self, runner: Any) -> None:
        self.gaps_s: list[float] = []  # from the end of a step to the start of the next one
        self._ended_ns = 0
        collect = runner.collect

        def timed(step: int) -> object:
            progress = runner._steps[step].progress
            output = collect(step)
            self.gaps_s.append((progress.started_ns - self._ended_ns) * 1e-9)
            self._ended_ns = progress.ended_ns
            return output

        runner.collect = timed


@dataclass(frozen=True, slots=True)
class HostWork:
    """Medians over decode steps, in ms."""

    host_ms: float  # outside the native functions
    gap_ms: float  # between the kernels of one step and those of the next


def host_work(engine: Engine, clock: NativeClock, steps: StepClock, batch: int, waiting: int) -> HostWork:
    """Of decode steps of `batch` sequences, while `waiting` more are in the queue."""
    core = engine.core
    names = [f"{batch}-{waiting}-{number}" for number in range(batch + waiting)]
    for number, name in enumerate(names):
        core.add(_sequence(engine, name, number))
    while len(core.scheduler.running) < batch or any(
        sequence.num_computed_tokens < PROMPT_TOKENS for sequence in core.scheduler.running
    ):
        core.step()
    hosts_s = []
    steps.gaps_s.clear()
    for _ in range(STEPS):
        clock.inside_s = 0.0
        start = time.perf_counter()
        core.step()
        hosts_s.append(time.perf_counter() - start - clock.inside_s)
    assert len(core.scheduler.running) == batch, "a sequence has ended while the steps were timed"
    gap_s = median(steps.gaps_s)
    for name in reversed(names):
        core.abort(name)
    while core.has_work:
        core.step()
    return HostWork(median(hosts_s) * 1e3, gap_s * 1e3)


def _sequence(engine: Engine, name: str, number: int) -> Sequence:
    """Its first token is its own: no two share a prefix."""
    ids = [FIRST_ID + number, *range(FIRST_ID, FIRST_ID + PROMPT_TOKENS - 1)]
    params = SamplingParams(temperature=0.0, max_tokens=4 * STEPS, ignore_eos=True)
    return Sequence(name, ids, params, text=TextStream(engine.tokenizer, ids, params))


def main() -> None:
    """Measure all cases with one engine."""
    settings = {**parse_pairs(sys.argv[2:]), "max_num_seqs": str(BATCH), "max_num_waiting": str(2 * WAITING)}
    with LLM(sys.argv[1], **settings) as llm:
        engine = llm.engine
        core = engine.core
        core.add(_sequence(engine, "first", 0))  # every function of the library has been looked up once
        for _ in range(PROMPT_TOKENS):
            core.step()
        core.abort("first")
        clock, steps = NativeClock(engine.runner), StepClock(engine.runner)
        figures: dict[str, float] = {}
        for name, batch, waiting in (
            ("1", 1, 0),
            (f"{BATCH}", BATCH, 0),
            (f"{BATCH}_waiting", BATCH, WAITING),
        ):
            found = host_work(engine, clock, steps, batch, waiting)
            figures |= {f"host_ms_{name}": found.host_ms, f"gap_ms_{name}": found.gap_ms}
        plan = engine.placement.plan
        tokens = plan.num_blocks[0] * plan.kv.block_size
        parts = {part.name: part.size_bytes for part in engine.runner.memory()}
        figures |= {"weights_bytes": parts["weights"], "kv_bytes_per_token": parts["kv"] / tokens}
    print(json.dumps(figures))


if __name__ == "__main__":
    main()
