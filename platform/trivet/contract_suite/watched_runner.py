"""Stands between the engine core and a runner, and checks the core's half of rules 6 and 7."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from trivet.contract import Batch, Feature, MemoryPart, Runner, Sampling, StepOutput
from trivet.contract_suite.steps import arrays_of
from trivet.runners.wire import round_trip
from trivet.weights.index import WeightIndex


class WatchedRunner:
    """A runner whose steps reach the real one as they would reach a rank: through one buffer.

    The originals have to stay as they are until the step is collected.
    """

    def __init__(self, runner: Runner) -> None:
        self.runner = runner
        self.features: frozenset[Feature] = runner.features
        self.max_in_flight = runner.max_in_flight
        self._originals: dict[int, list[Batch | Sampling]] = {}
        self._copies: dict[int, list[NDArray[np.generic]]] = {}

    def forward(self, batch: Batch) -> None:
        """Sent through a buffer."""
        self._remember(batch.step, batch)
        self.runner.forward(round_trip(batch))

    def sample(self, step: int, sampling: Sampling) -> None:
        """Sent through a buffer."""
        self._remember(step, sampling)
        self.runner.sample(step, round_trip(sampling))

    def collect(self, step: int) -> StepOutput:
        """Raises: AssertionError where an array of the step has changed since it was submitted."""
        originals = [array for value in self._originals.pop(step) for array in arrays_of(value)]
        for original, copy in zip(originals, self._copies.pop(step), strict=True):
            np.testing.assert_array_equal(original, copy, "the core changed an array of a step in flight")
        return self.runner.collect(step)

    def _remember(self, step: int, value: Batch | Sampling) -> None:
        self._originals.setdefault(step, []).append(value)
        self._copies.setdefault(step, []).extend(array.copy() for array in arrays_of(value))

    # ---- the rest goes through

    def load(self, weights: WeightIndex, on_progress: Callable[[int, int], None]) -> None:
        """As the runner's."""
        self.runner.load(weights, on_progress)

    def allocate_kv(self) -> None:
        """As the runner's."""
        self.runner.allocate_kv()

    def warm_up(self) -> None:
        """As the runner's."""
        self.runner.warm_up()

    def host_buffer(self, num_int32: int) -> NDArray[np.int32]:
        """As the runner's."""
        return self.runner.host_buffer(num_int32)

    def memory(self) -> tuple[MemoryPart, ...]:
        """As the runner's."""
        return self.runner.memory()

    def load_adapter(self, slot: int, weights: WeightIndex) -> None:
        """As the runner's."""
        self.runner.load_adapter(slot, weights)

    def unload_adapter(self, slot: int) -> None:
        """As the runner's."""
        self.runner.unload_adapter(slot)

    def close(self) -> None:
        """As the runner's."""
        self.runner.close()
