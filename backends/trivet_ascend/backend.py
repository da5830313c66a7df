"""The torch-free half of the Ascend backend: it finds NPUs and says why none can be used."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from trivet.contract import DeviceInfo, MemoryPlan, Runner, RunnerConfig
from trivet.errors import Unsupported
from trivet.models.spec import ModelSpec
from trivet.weights.index import WeightIndex
from trivet_ascend.detection import Npu, find_npus, find_versions

NO_RUNNER = "this version of Trivet finds Ascend NPUs but has no runner for them; use backend cpu"
# 910A and 310P have no bfloat16 arithmetic.
DTYPES = {"910A": frozenset({"f32", "f16"}), "310P": frozenset({"f32", "f16"})}
OTHER_DTYPES = frozenset({"f32", "f16", "bf16"})


class AscendBackend:
    """Ascend NPUs, one device a chip."""

    name = "ascend"

    def __init__(self, root: Path = Path("/"), npu_smi: str = "npu-smi") -> None:
        self._root, self._npu_smi = root, npu_smi

    def probe(self, timeout_s: float) -> list[DeviceInfo]:
        """As the contract. Every device is unusable in this version; a fault of its own is named first."""
        versions = find_versions(self._root)
        return [_device(npu, versions) for npu in find_npus(self._root, self._npu_smi, timeout_s / 2)]

    def absent_because(self, timeout_s: float = 5.0) -> str:
        """Why `probe` finds no device, for `trivet doctor`; empty where it finds one."""
        if find_npus(self._root, self._npu_smi, timeout_s / 2):
            return ""
        return "no Ascend NPU: no accelerator of PCI vendor 0x19e5 on the bus, no /dev/davinci*, no npu-smi"

    def launch_env(self, devices: Sequence[DeviceInfo]) -> dict[str, str]:
        """Logical ids, ascending: in another order torch_npu reports no device at all (Trinity-RFT #618)."""
        visible = ",".join(str(index) for index in sorted(device.index for device in devices))
        return {"ASCEND_RT_VISIBLE_DEVICES": visible, "TORCH_DEVICE_BACKEND_AUTOLOAD": "0"}

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


def _device(npu: Npu, versions: tuple[tuple[str, str], ...]) -> DeviceInfo:
    return DeviceInfo(
        kind=AscendBackend.name,
        index=npu.index,
        uid=npu.uid,
        name=npu.name,
        arch=npu.family,
        total_bytes=npu.total_bytes,
        free_bytes=npu.free_bytes,
        dtypes=DTYPES.get(npu.family, OTHER_DTYPES),
        versions=versions,
        unusable_because=npu.fault or NO_RUNNER,
    )
