"""The product's Ascend backend on a device that computes torch-npu's operations on the CPU."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from trivet_ascend_emulated.pretended import PretendedAscend

from trivet.contract import DeviceInfo, MemoryPlan, Runner, RunnerConfig
from trivet.errors import Unsupported
from trivet.models.spec import ModelSpec
from trivet.weights.index import WeightIndex
from trivet_ascend.backend import runner_shape

TOTAL_BYTES = 12 << 30
STEPS = "out_of_memory_steps"  # of the contract suite


class EmulatedAscend(PretendedAscend):
    """Everything but the device itself is the product's."""

    name = "ascend-emulated"
    uid = "emulated"
    device_name = "emulated NPU (no hardware)"
    total_bytes = TOTAL_BYTES

    def check(self, spec: ModelSpec, weights: WeightIndex, config: RunnerConfig, device: DeviceInfo) -> None:
        """As the product's; also takes the step that shall run out of memory."""
        steps = config.options.get(STEPS, "0")
        if not steps.isdigit():
            raise Unsupported(f"{STEPS} is {steps!r}; give one step")
        super().check(spec, weights, _without_steps(config), device)

    def plan(
        self, spec: ModelSpec, weights: WeightIndex, config: RunnerConfig, devices: Sequence[DeviceInfo]
    ) -> MemoryPlan:
        """As the product's."""
        return super().plan(spec, weights, _without_steps(config), devices)

    def create_runner(
        self, spec: ModelSpec, config: RunnerConfig, plan: MemoryPlan, devices: Sequence[DeviceInfo]
    ) -> Runner:
        """The product's runner on the emulated device."""
        from trivet_ascend_emulated.device import EmulatedDevice, FailingRunner

        shape = runner_shape(spec, _without_steps(config), plan, devices)
        runner = FailingRunner(spec, plan, shape, EmulatedDevice(TOTAL_BYTES))
        runner.failing_step = int(config.options.get(STEPS, 0))
        return runner


def _without_steps(config: RunnerConfig) -> RunnerConfig:
    return replace(config, options={key: value for key, value in config.options.items() if key != STEPS})
