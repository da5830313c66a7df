"""The CPU as a GPU: kernels are interpreted, graphs are run again over the same buffers."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from trivet.contract import Batch
from trivet_cuda.device import Captured, Mark, as_out_of_memory
from trivet_cuda.runner import CudaRunner

TOTAL_BYTES = 12 << 30
ARCH = 90
aten = torch.ops.aten
# What waits for a device, or asks it for a size.
WAITING = {
    aten._local_scalar_dense.default: "a value is brought to the host",
    aten.item.default: "a value is brought to the host",
    aten.is_nonzero.default: "a value is brought to the host",
    aten.nonzero.default: "the size of a result is brought to the host",
    aten.masked_select.default: "the size of a result is brought to the host",
    aten._unique2.default: "the size of a result is brought to the host",
}


class NothingWaits(TorchDispatchMode):
    """Refuses what a graph cannot capture."""

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if function in WAITING:
            raise RuntimeError(f"{function} in a capture: {WAITING[function]}")
        is_indexing = function in (aten.index.Tensor, aten.index_put_.default, aten.index_put.default)
        if is_indexing and any(i is not None and i.dtype in (torch.bool, torch.uint8) for i in args[1]):
            raise RuntimeError(f"{function} in a capture: a mask's size is brought to the host")
        return function(*args, **(kwargs or {}))


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

    def free_bytes(self) -> int:
        return self._total_bytes

    def reset_peak(self) -> None:
        """The CPU's allocator does not tell."""

    def peak_bytes(self) -> int:
        return 0

    def mark(self) -> Mark:
        return HostMark()

    def capture(self, run: Callable[[], Tensor]) -> Captured:
        """Runs it under the rules of a capture; a replay runs it again, into the first result's memory."""
        with NothingWaits():
            output = run()
        self.num_captured += 1

        def replay() -> None:
            self.num_replayed += 1
            with torch.inference_mode(), NothingWaits():
                output.copy_(run())

        return Captured(output, replay)

    def synchronise(self) -> None:
        """Nothing to wait for."""

    def release(self) -> None:
        """Nothing is cached."""


class FailingRunner(CudaRunner):
    """Step `failing_step` raises what torch raises on a GPU."""

    failing_step = 0

    def _warm_up_lengths(self) -> tuple[int, ...]:
        """A full step of interpreted programs takes ten seconds, and nothing is compiled by it."""
        return 20, 1

    def _run_every_bucket(self) -> None:
        """As above."""

    def forward(self, batch: Batch) -> None:
        super().forward(batch)
        if batch.step == self.failing_step:
            self.failing_step = 0
            self._steps[batch.step].failure = as_out_of_memory(torch.OutOfMemoryError("CUDA out of memory"))
