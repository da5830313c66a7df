"""The CPU as a GPU: kernels are interpreted, graphs replay what they recorded over the same memory."""

from __future__ import annotations

import time
from collections.abc import Callable

import torch
from torch import Tensor

from trivet.contract import Batch
from trivet.contract_suite.recorded_graph import RecordedGraph
from trivet.runners.warm_up import warm_up_step
from trivet_cuda.device import Captured, Mark
from trivet_cuda.failures import as_step_failure
from trivet_cuda.runner import CudaRunner

TOTAL_BYTES = 12 << 30
ARCH = 90


class HostMark:
    """The CPU has done everything when a call returns."""

    def __init__(self) -> None:
        self.at_s = time.perf_counter()

    def is_passed(self) -> bool:
        return True

    def wait(self) -> None:
        """Nothing to wait for."""

    def seconds_since(self, earlier: Mark) -> float:
        assert isinstance(earlier, HostMark)
        return self.at_s - earlier.at_s


class InterpretedDevice:
    """See `trivet_cuda.device.Device`."""

    def __init__(self, total_bytes: int = TOTAL_BYTES, num_sms: int = 2) -> None:
        self.torch_device = torch.device("cpu")
        self.arch, self.num_sms = ARCH, num_sms
        self._total_bytes = total_bytes
        self.num_captured = self.num_replayed = 0

    def use(self) -> None:
        """There is no other."""

    def free_bytes(self) -> int:
        return self._total_bytes

    def reset_peak(self) -> None:
        """The CPU's allocator does not tell."""

    def peak_bytes(self) -> int:
        return 0

    def mark(self) -> Mark:
        return HostMark()

    def capture(self, run: Callable[[], Tensor]) -> Captured:
        """Under the rules of a capture."""
        graph, output = RecordedGraph.of(run)
        self.num_captured += 1

        def replay() -> None:
            self.num_replayed += 1
            graph.replay()

        return Captured(output, replay)

    def synchronise(self) -> None:
        """Nothing to wait for."""

    def release(self) -> None:
        """Nothing is cached."""


class FailingRunner(CudaRunner):
    """Step `failing_step` raises what torch raises on a GPU."""

    failing_step = 0

    def _warm_up_steps(self) -> tuple[Batch, ...]:
        """A full step of interpreted programs takes ten seconds, and nothing is compiled by it."""
        return tuple(warm_up_step(lengths, self._plan.kv.block_size) for lengths in ((20,), (1,)))

    def _run_every_bucket(self) -> None:
        """As above."""

    def forward(self, batch: Batch) -> None:
        super().forward(batch)
        if batch.step == self.failing_step:
            self.failing_step = 0
            self._steps[batch.step].failure = as_step_failure(torch.OutOfMemoryError("CUDA out of memory"))
