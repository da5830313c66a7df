"""The torch-free half of the CUDA backend: it finds GPUs and says why none can be used."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from trivet.contract import DeviceInfo, MemoryPlan, Runner, RunnerConfig
from trivet.errors import Unsupported
from trivet.models.spec import ModelSpec
from trivet.weights.index import WeightIndex
from trivet_cuda.detection import Gpu, find_gpus

NO_RUNNER = "this version of Trivet finds NVIDIA GPUs but has no runner for them; use backend cpu"
FIRST_BF16 = 8.0  # compute capability, Ampere


class CudaBackend:
    """NVIDIA GPUs, one device each."""

    name = "cuda"

    def __init__(self, root: Path = Path("/"), nvidia_smi: str = "nvidia-smi") -> None:
        self._root, self._nvidia_smi = root, nvidia_smi

    def probe(self, timeout_s: float) -> list[DeviceInfo]:
        """As the contract. Every device is unusable in this version; a fault of its own is named first."""
        return [_device(gpu) for gpu in find_gpus(self._root, self._nvidia_smi, timeout_s)]

    def absent_because(self, timeout_s: float = 5.0) -> str:
        """Why `probe` finds no device, for `trivet doctor`; empty where it finds one."""
        if find_gpus(self._root, self._nvidia_smi, timeout_s):
            return ""
        return (
            "no NVIDIA GPU: none of PCI vendor 0x10de on the bus, no driver loaded, no answer of nvidia-smi"
        )

    def launch_env(self, devices: Sequence[DeviceInfo]) -> dict[str, str]:
        """Only the chosen GPUs are visible, by UUID: an index would depend on CUDA's own order."""
        return {
            "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
            "CUDA_VISIBLE_DEVICES": ",".join(device.uid for device in devices),
        }

    def check(self, spec: ModelSpec, weights: WeightIndex, config: RunnerConfig, device: DeviceInfo) -> None:
        """Raises: Unsupported, always."""
        raise Unsupported(NO_RUNNER)

    def plan(
        self, spec: ModelSpec, weights: WeightIndex, config: RunnerConfig, devices: Sequence[DeviceInfo]
    ) -> MemoryPlan:
        """Raises: Unsupported, always."""
        raise Unsupported(NO_RUNNER)

    def create_runner(
        self, spec: ModelSpec, config: RunnerConfig, plan: MemoryPlan, devices: Sequence[DeviceInfo]
    ) -> Runner:
        """Raises: Unsupported, always."""
        raise Unsupported(NO_RUNNER)


def _device(gpu: Gpu) -> DeviceInfo:
    capability = gpu.compute_capability
    dtypes = {"f32", "f16"} if capability else set()
    if capability and float(capability) >= FIRST_BF16:
        dtypes.add("bf16")
    return DeviceInfo(
        kind=CudaBackend.name,
        index=gpu.index,
        uid=gpu.uid,
        name=gpu.name,
        arch=f"sm_{capability.replace('.', '')}" if capability else "",
        total_bytes=gpu.total_bytes,
        free_bytes=gpu.free_bytes,
        dtypes=frozenset(dtypes),
        versions=(("driver", gpu.driver),) if gpu.driver else (),
        unusable_because=gpu.fault or NO_RUNNER,
    )
