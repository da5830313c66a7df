"""The emulated device, and a runner that runs out of memory when it is told to."""

from __future__ import annotations

import torch
from trivet_ascend_emulated.operators import define_operators

from trivet.contract import Batch
from trivet_ascend.runner import AscendRunner, as_out_of_memory


class EmulatedDevice:
    """The CPU, with torch-npu's operations defined on it."""

    def __init__(self, total_bytes: int) -> None:
        define_operators()
        self.torch_device = torch.device("cpu")
        self._total_bytes = total_bytes

    def free_bytes(self) -> int:
        return self._total_bytes

    def synchronise(self) -> None:
        """The CPU has finished when a call returns."""

    def release(self) -> None:
        """Nothing is cached."""


class FailingRunner(AscendRunner):
    """Step `failing_step` raises what torch raises on an NPU."""

    failing_step = 0

    def forward(self, batch: Batch) -> None:
        super().forward(batch)
        if batch.step == self.failing_step:
            self.failing_step = 0
            assert self._step is not None
            self._step.failure = as_out_of_memory(torch.OutOfMemoryError("NPU out of memory"))
