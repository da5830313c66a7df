"""The product's Ascend backend; its kernels are replaced before the runner opens the device."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from trivet.contract import DeviceInfo, MemoryPlan, Runner, RunnerConfig
from trivet.models.spec import ModelSpec
from trivet.self_test import OpOutcome
from trivet_ascend.backend import AscendBackend

TOTAL_BYTES = 4 << 30  # as fake_acl.c has it


class FakeNpuAscend(AscendBackend):
    """Says of its device what it is. Everything behind `create_runner` is the product's and torch-npu's."""

    name = "ascend-fake-npu"
    tested_options: Sequence[Mapping[str, str]] = ({"attention": "fused"},)

    def probe(self, timeout_s: float) -> list[DeviceInfo]:
        """One device."""
        return [
            DeviceInfo(
                kind=self.name,
                index=0,
                uid="fake",
                name="fake NPU (no hardware)",
                arch="A2",
                total_bytes=TOTAL_BYTES,
                free_bytes=TOTAL_BYTES,
                dtypes=frozenset({"f32", "f16", "bf16"}),
            )
        ]

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
