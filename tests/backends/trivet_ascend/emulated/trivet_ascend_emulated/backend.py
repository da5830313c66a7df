"""The product's Ascend backend on a device that computes torch-npu's operations on the CPU."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from trivet.contract import DeviceInfo, MemoryPlan, Runner, RunnerConfig
from trivet.errors import Unsupported
from trivet.models.spec import ModelSpec
from trivet.weights.index import WeightIndex
from trivet_ascend.backend import AscendBackend, resolve_shape

TOTAL_BYTES = 12 << 30
STEPS = "out_of_memory_steps"  # of the contract suite


class EmulatedAscend(AscendBackend):
    """Everything but the device itself is the product's."""

    name = "ascend-emulated"
    # Tiny models have heads of 16 and 32: with "fused" they go through the fused operation all the same,
    # in bfloat16; in float32 attention is gathered.
    tested_options: Sequence[Mapping[str, str]] = ({"attention": "fused"},)

    def probe(self, timeout_s: float) -> list[DeviceInfo]:
        """One device that says what it is."""
        return [
            DeviceInfo(
                kind=self.name,
                index=0,
                uid="emulated",
                name="emulated NPU (no hardware)",
                arch="A2",
                total_bytes=TOTAL_BYTES,
                free_bytes=TOTAL_BYTES,
                dtypes=frozenset({"f32", "f16", "bf16"}),
            )
        ]

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

        shape = resolve_shape(spec, _without_steps(config), devices[0]).with_max_model_len(plan.max_model_len)
        runner = FailingRunner(spec, plan, shape, EmulatedDevice(TOTAL_BYTES))
        runner.failing_step = int(config.options.get(STEPS, 0))
        return runner


def _without_steps(config: RunnerConfig) -> RunnerConfig:
    return replace(config, options={key: value for key, value in config.options.items() if key != STEPS})
