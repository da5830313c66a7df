"""The product's CUDA backend on a device whose kernels Triton interprets."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace

from trivet.contract import DeviceInfo, MemoryPlan, Runner, RunnerConfig
from trivet.errors import Unsupported
from trivet.models.spec import ModelSpec
from trivet.optional_contract import DeviceUsage
from trivet.weights.index import WeightIndex
from trivet_cuda.backend import CudaBackend, runner_shape

TOTAL_BYTES = 12 << 30
STEPS = "out_of_memory_steps"  # of the contract suite
# "twins": plain torch in place of the kernels, for cases about everything else; a tenth of the time.
KERNELS = "TRIVET_CUDA_KERNELS"
DEVICES = "CUDA_INTERPRETED_DEVICES"  # how many there are; 1 where it is not set


class InterpretedCuda(CudaBackend):
    """Everything but the device itself is the product's."""

    name = "cuda-interpreted"
    # Graphs and the self-test launch programs that the interpreter has no time for; both have tests.
    tested_options: Sequence[Mapping[str, str]] = ({"graphs": "off", "self_test": "off"},)

    def probe(self, timeout_s: float) -> list[DeviceInfo]:
        """Devices that say what they are."""
        return [
            DeviceInfo(
                kind=self.name,
                index=index,
                uid=f"interpreted{index or ''}",
                name="Triton's interpreter (no hardware)",
                arch="sm_90",
                total_bytes=TOTAL_BYTES,
                free_bytes=TOTAL_BYTES,
                dtypes=frozenset({"f32", "f16", "bf16"}),
            )
            for index in range(int(os.environ.get(DEVICES, 1)))
        ]

    def usage(self, timeout_s: float = 5.0) -> dict[str, DeviceUsage]:
        """Nobody has memory there: what an engine takes is the host's."""
        found = self.probe(timeout_s)
        return {device.uid: DeviceUsage(0, TOTAL_BYTES, users=()) for device in found}

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
        """The product's runner and kernels on the interpreted device, or on several."""
        from trivet_cuda_interpreted.device import FailingRunner, InterpretedDevice
        from trivet_cuda_interpreted.openers import open_interpreted
        from trivet_cuda_interpreted.repair import install

        from trivet.runners.ranks import TensorParallelRunner
        from trivet_cuda.op_table import TWINS, triton_table

        if config.tensor_parallel > 1:
            return TensorParallelRunner(spec, config, plan, devices, open_interpreted)
        install()
        shape = runner_shape(spec, _without_steps(config), plan, devices)
        table = TWINS if os.environ.get(KERNELS) == "twins" else triton_table()
        runner = FailingRunner(spec, plan, shape, InterpretedDevice(), table)
        runner.failing_step = int(config.options.get(STEPS, 0))
        return runner


def _without_steps(config: RunnerConfig) -> RunnerConfig:
    return replace(config, options={key: value for key, value in config.options.items() if key != STEPS})
