"""The CPU in place of a GPU, for tests of what is not the kernels' own."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor

from trivet.contract import DeviceInfo, RunnerConfig
from trivet.contract_suite.recorded_graph import RecordedGraph
from trivet_cuda import twins
from trivet_cuda.device import Captured, Mark
from trivet_cuda.op_table import TWINS

CONFIG = RunnerConfig(
    dtype="f32", max_model_len=64, max_num_seqs=2, num_blocks=20, options={"self_test": "off"}
)


INFO = DeviceInfo("cuda", 0, "GPU-1", "test", "sm_90", 1 << 36, 1 << 36, frozenset({"f32", "bf16", "f16"}))


class PassedMark:
    def __init__(self) -> None:
        self.at_s = time.perf_counter()

    def is_passed(self) -> bool:
        return True

    def wait(self) -> None:
        """The CPU is never behind."""

    def seconds_since(self, earlier: Mark) -> float:
        assert isinstance(earlier, PassedMark)
        return self.at_s - earlier.at_s


class CpuDevice:
    """See `trivet_cuda.device.Device`."""

    torch_device = torch.device("cpu")
    arch, num_sms = 90, 2

    def __init__(self, peak: int = 0, refuses: str = "") -> None:
        self._peak, self._refuses, self.free = peak, refuses, 1 << 36

    def use(self) -> None:
        """There is no other."""

    def free_bytes(self) -> int:
        return self.free

    def reset_peak(self) -> None:
        """Told by the test."""

    def peak_bytes(self) -> int:
        return self._peak

    def mark(self) -> Mark:
        return PassedMark()

    def capture(self, run: Callable[[], Tensor]) -> Captured:
        if self._refuses:
            raise RuntimeError(self._refuses)
        graph, output = RecordedGraph.of(run)
        return Captured(output, graph.replay)

    def synchronise(self) -> None:
        """Nothing is queued."""

    def release(self) -> None:
        """Nothing is cached."""


# As a kernel: what runs in place of one is not captured.
KERNELS = replace(TWINS, decode_attention=lambda *args: twins.decode_attention(*args))
