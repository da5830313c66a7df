"""When the requests of a load are due.

Closed loop: a fixed number of users, each of whom sends again when an answer is complete; the load slows
down with the server. Open loop: arrivals at a given rate whatever the server does, as from many users who
do not know of each other. Gaps are drawn from a gamma distribution of shape `burstiness`: 1 gives a Poisson
process, less gives bursts, more gives regular arrivals (the parameter is vLLM's).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True, slots=True)
class Arrivals:
    """`rate` None is the closed loop. `concurrency` bounds the open requests in both; None: no bound."""

    concurrency: int | None = None
    rate: float | None = None  # requests a second
    burstiness: float = 1.0

    def offsets_s(self, count: int, rng: np.random.Generator) -> list[float]:
        """Seconds from the start at which each of `count` requests is due; all 0 in the closed loop."""
        if self.rate is None:
            return [0.0] * count
        gaps = rng.gamma(self.burstiness, 1.0 / (self.rate * self.burstiness), count)
        gaps[0] = 0.0  # the clock of a run starts with its first request
        offsets: list[float] = np.cumsum(gaps).tolist()
        return offsets
