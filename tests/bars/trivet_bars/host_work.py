"""Trivet's host work between kernels: `python -m trivet_bars.host_work MODEL KEY=VALUE...`.

The native functions of the runner's library are timed from outside; what a decode step takes besides them is
host work: scheduling, building the batch, Python around the calls, committing, text. Prints one JSON line.
"""

from __future__ import annotations

import ctypes
import json
import sys
import time
from collections.abc import Callable
from statistics import median

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


def host_ms(engine: Engine, clock: NativeClock, batch: int, waiting: int) -> float:
    """Median over decode steps of `batch` sequences, in ms, while `waiting` more are in the queue."""
    core = engine.core
    names = [f"{batch}-{waiting}-{number}" for number in range(batch + waiting)]
    for number, name in enumerate(names):
        core.add(_sequence(engine, name, number))
    while len(core.scheduler.running) < batch or any(
        sequence.num_computed_tokens < PROMPT_TOKENS for sequence in core.scheduler.running
    ):
        core.step()
    hosts_s = []
    for _ in range(STEPS):
        clock.inside_s = 0.0
        start = time.perf_counter()
        core.step()
        hosts_s.append(time.perf_counter() - start - clock.inside_s)
    assert len(core.scheduler.running) == batch, "a sequence has ended while the steps were timed"
    for name in reversed(names):
        core.abort(name)
    while core.has_work:
        core.step()
    return median(hosts_s) * 1e3


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
        clock = NativeClock(engine.runner)
        figures = {
            "host_ms_1": host_ms(engine, clock, 1, 0),
            f"host_ms_{BATCH}": host_ms(engine, clock, BATCH, 0),
            f"host_ms_{BATCH}_waiting": host_ms(engine, clock, BATCH, WAITING),
        }
        plan = engine.placement.plan
        tokens = plan.num_blocks[0] * plan.kv.block_size
        parts = {part.name: part.size_bytes for part in engine.runner.memory()}
        figures |= {"weights_bytes": parts["weights"], "kv_bytes_per_token": parts["kv"] / tokens}
    print(json.dumps(figures))


if __name__ == "__main__":
    main()
