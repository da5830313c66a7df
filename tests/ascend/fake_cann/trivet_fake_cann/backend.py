"""The product's Ascend backend; its kernels are replaced before the runner opens the device."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from trivet_ascend_emulated.pretended import PretendedAscend

from trivet.contract import DeviceInfo, MemoryPlan, Runner, RunnerConfig
from trivet.models.spec import ModelSpec
from trivet.self_test import OpOutcome


class FakeNpuAscend(PretendedAscend):
    """Everything behind `create_runner` is the product's and torch-npu's."""

    name = "ascend-fake-npu"
    uid = "fake"
    device_name = "fake NPU (no hardware)"
    total_bytes = 4 << 30  # as fake_acl.c has it

    def self_test(self, device: int) -> Iterator[OpOutcome]:
        """The product's, on `npu:0`."""
        from trivet_fake_cann.device import install_once

        install_once()
        return super().self_test(device)

    def create_runner(
        self, spec: ModelSpec, config: RunnerConfig, plan: MemoryPlan, devices: Sequence[DeviceInfo]
    ) -> Runner:
        """The product's runner on `npu:0`."""
        from trivet_fake_cann.device import install_once

        install_once()
        return super().create_runner(spec, config, plan, devices)
