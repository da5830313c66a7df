"""Trivet in process: `python -m trivet_bars.peers.trivet_engine MODEL KEY=VALUE...`.

The load generator is that of `trivet bench throughput`: the engine's core is stepped and text is made of the
tokens as in serving.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

import numpy as np
from trivet_bars.orders import Arrivals, Order, take_orders

from trivet.bench.arrivals import Arrivals as When
from trivet.bench.engine_load import EngineLoad
from trivet.bench.prompts import Prompt
from trivet.bench.workload import Turn, Workload
from trivet.commands.connecting import parse_pairs
from trivet.llm import LLM
from trivet.sampling_params import SamplingParams


class Trivet:
    """One loaded model."""

    def __init__(self, model: str, settings: dict[str, str]) -> None:
        self._llm = LLM(model, **settings)

    def generate(self, order: Order) -> Sequence[Arrivals]:
        """As `orders.InProcess`. Raises: RuntimeError where a request fails."""
        sampling = SamplingParams(temperature=order.temperature, top_p=order.top_p, ignore_eos=True)
        talks = tuple((Turn(Prompt(ids=tuple(ids)), order.output_tokens),) for ids in order.prompts)
        load = EngineLoad(self._llm, sampling)
        done = load.run(Workload(talks), When(len(talks)), np.random.default_rng(0), lambda: None)
        failures = [timeline.failure for timeline in done.timelines if timeline.failure]
        if failures:
            raise RuntimeError(failures[0])
        return [_arrivals(t.token_times_s, t.num_tokens) for t in done.timelines]


def _arrivals(times_s: list[float], num_tokens: int) -> Arrivals:
    """A step brings a sequence one token, so each time is one token's; what is left came with the last."""
    counts = [1] * len(times_s)
    counts[-1] += num_tokens - len(times_s)
    return Arrivals(times_s, counts)


if __name__ == "__main__":
    model, settings = sys.argv[1], parse_pairs(sys.argv[2:])
    take_orders(lambda: Trivet(model, settings), ("trivet", "numpy"), settings)
