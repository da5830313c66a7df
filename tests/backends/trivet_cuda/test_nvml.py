"""What NVML says, by a library that answers as nvidia-ml-py does; no GPU is here to ask."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from trivet.optional_contract import DeviceUser
from trivet_cuda.backend import CudaBackend

GIB = 1 << 30


class NVMLError(Exception):
    """As nvidia-ml-py raises."""


class FakeNvml:
    """Two GPUs, the second in MIG mode with two instances; `fails` names functions that raise."""

    NVMLError = NVMLError
    NVML_TEMPERATURE_GPU = 0

    def __init__(self, *fails: str, num_instances: int = 2) -> None:
        self.fails, self.num_instances, self.is_open = fails, num_instances, False

    def __getattribute__(self, name: str) -> Any:
        if name.startswith("nvml") and name in object.__getattribute__(self, "fails"):

            def refuse(*arguments: object) -> None:
                raise NVMLError(f"{name}: Not Supported")

            return refuse
        return object.__getattribute__(self, name)

    def nvmlInit(self) -> None:  # noqa: N802
        self.is_open = True

    def nvmlShutdown(self) -> None:  # noqa: N802
        self.is_open = False

    def nvmlSystemGetDriverVersion(self) -> bytes:  # noqa: N802  # older releases answer in bytes
        return b"570.12"

    def nvmlDeviceGetCount(self) -> int:  # noqa: N802
        return 2

    def nvmlDeviceGetHandleByIndex(self, number: int) -> str:  # noqa: N802
        return f"gpu{number}"

    def nvmlDeviceGetName(self, handle: str) -> str:  # noqa: N802
        return "NVIDIA H100"

    def nvmlDeviceGetUUID(self, handle: str) -> str:  # noqa: N802
        return f"{'MIG' if 'mig' in handle else 'GPU'}-{handle}"

    def nvmlDeviceGetCudaComputeCapability(self, handle: str) -> tuple[int, int]:  # noqa: N802
        return 9, 0

    def nvmlDeviceGetMigMode(self, handle: str) -> list[int]:  # noqa: N802
        return [int(handle == "gpu1"), 0]

    def nvmlDeviceGetMaxMigDeviceCount(self, handle: str) -> int:  # noqa: N802
        return 7

    def nvmlDeviceGetMigDeviceHandleByIndex(self, handle: str, place: int) -> str:  # noqa: N802
        if place >= self.num_instances:
            raise NVMLError("Not Found")
        return f"{handle}mig{place}"

    def nvmlDeviceGetGpuInstanceId(self, handle: str) -> int:  # noqa: N802
        return 7 if handle.endswith("1") else 3

    def nvmlDeviceGetComputeInstanceId(self, handle: str) -> int:  # noqa: N802
        return 0

    def nvmlDeviceGetMemoryInfo(self, handle: str) -> SimpleNamespace:  # noqa: N802
        total = (10 if "mig" in handle else 80) * GIB
        return SimpleNamespace(total=total, used=2 * GIB, free=total - 2 * GIB)

    def nvmlDeviceGetUtilizationRates(self, handle: str) -> SimpleNamespace:  # noqa: N802
        return SimpleNamespace(gpu=37)

    def nvmlDeviceGetTemperature(self, handle: str, sensor: int) -> int:  # noqa: N802
        return 61

    def nvmlDeviceGetPowerUsage(self, handle: str) -> int:  # noqa: N802
        return 412_500

    NVML_CLOCK_MEM = 2

    def nvmlDeviceGetMaxClockInfo(self, handle: str, kind: int) -> int:  # noqa: N802
        return self._of_a_whole_gpu(handle, 2619 if kind == self.NVML_CLOCK_MEM else 1980)

    def nvmlDeviceGetMemoryBusWidth(self, handle: str) -> int:  # noqa: N802
        return self._of_a_whole_gpu(handle, 5120)

    def _of_a_whole_gpu(self, handle: str, value: int) -> int:
        if "mig" in handle:
            raise NVMLError("Not Supported")
        return value

    def nvmlDeviceGetComputeRunningProcesses(self, handle: str) -> list[SimpleNamespace]:  # noqa: N802
        return [SimpleNamespace(pid=17, usedGpuMemory=GIB), SimpleNamespace(pid=18, usedGpuMemory=None)]


def backend(nvml: FakeNvml, root: Path, **environment: str) -> CudaBackend:
    return CudaBackend(root, str(root / "nvidia-smi"), lambda: nvml, lambda: environment)


def test_whole_gpus_and_instances_are_listed(tmp_path: Path) -> None:
    nvml = FakeNvml()
    devices = backend(nvml, tmp_path).probe(5.0)
    assert [device.uid for device in devices] == ["GPU-gpu0", "MIG-gpu1mig0", "MIG-gpu1mig1"]
    assert [device.index for device in devices] == [0, 1, 2]
    assert [device.total_bytes // GIB for device in devices] == [80, 10, 10]
    assert {device.arch for device in devices} == {"sm_90"}
    assert devices[0].versions == (("driver", "570.12"),)
    assert all(device.unusable_because is None for device in devices)
    assert not nvml.is_open


def test_an_instance_is_made_visible_by_its_own_name(tmp_path: Path) -> None:
    cuda = backend(FakeNvml(), tmp_path)
    assert cuda.launch_env(cuda.probe(5.0)[1:2])["CUDA_VISIBLE_DEVICES"] == "MIG-gpu1mig0"


def test_usage_has_load_temperature_and_power(tmp_path: Path) -> None:
    usage = backend(FakeNvml(), tmp_path).usage()["GPU-gpu0"]
    assert (usage.utilisation_percent, usage.temperature_c, usage.power_w) == (37, 61, 412.5)
    assert (usage.used_bytes, usage.total_bytes) == (2 * GIB, 80 * GIB)
    assert usage.users == (DeviceUser(17, GIB), DeviceUser(18, None))


def test_what_a_gpu_does_not_tell_is_none_and_the_rest_stays(tmp_path: Path) -> None:
    nvml = FakeNvml("nvmlDeviceGetUtilizationRates", "nvmlDeviceGetPowerUsage", "nvmlDeviceGetMigMode")
    nvml.fails += ("nvmlDeviceGetComputeRunningProcesses",)
    usage = backend(nvml, tmp_path).usage()
    assert len(usage) == 2
    assert usage["GPU-gpu0"].utilisation_percent is None
    assert usage["GPU-gpu0"].power_w is None
    assert usage["GPU-gpu0"].users is None
    assert usage["GPU-gpu0"].temperature_c == 61


def test_mig_without_an_instance_says_what_to_do(tmp_path: Path) -> None:
    devices = backend(FakeNvml(num_instances=0), tmp_path).probe(5.0)
    assert devices[0].unusable_because is None
    assert "nvidia-smi mig -cgi" in (devices[1].unusable_because or "")


@pytest.mark.parametrize("function", ["nvmlDeviceGetCudaComputeCapability", "nvmlDeviceGetMemoryInfo"])
def test_a_lost_gpu_stays_listed_with_the_reason(tmp_path: Path, function: str) -> None:
    devices = backend(FakeNvml(function), tmp_path).probe(5.0)
    assert devices
    assert all("NVML" in (device.unusable_because or "") for device in devices)


@pytest.mark.parametrize(
    ("function", "said"),
    [
        ("nvmlInit", "NVML does not start: nvmlInit: Not Supported"),
        ("nvmlDeviceGetCount", "NVML fails: nvmlDeviceGetCount: Not Supported"),
        ("", "NVML counts no GPU"),
    ],
)
def test_a_library_that_lists_none_leaves_the_question_to_nvidia_smi(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, function: str, said: str
) -> None:
    monkeypatch.setattr(FakeNvml, "nvmlDeviceGetCount", lambda self: 0)
    cuda = backend(FakeNvml(function), tmp_path)
    assert cuda.probe(5.0) == []
    assert cuda.absent_because() == (
        f"no NVIDIA GPU: none of PCI vendor 0x10de on the bus; {said}; nvidia-smi was not found"
    )
    tool = tmp_path / "nvidia-smi"
    tool.write_text("#!/bin/sh\necho 0, GPU-1, 0, NVIDIA H100, 9.0, 81559, 81008, 565.10, Disabled\n")
    tool.chmod(0o755)
    assert [device.uid for device in cuda.probe(5.0)] == ["GPU-1"]


class OneLost(FakeNvml):
    """No MIG; the second card has fallen off the bus."""

    def nvmlDeviceGetMigMode(self, handle: str) -> list[int]:  # noqa: N802
        return [0, 0]

    def nvmlDeviceGetUUID(self, handle: str) -> str:  # noqa: N802
        if handle == "gpu1":
            raise NVMLError("GPU is lost")
        return super().nvmlDeviceGetUUID(handle)

    def nvmlDeviceGetPciInfo(self, handle: str) -> SimpleNamespace:  # noqa: N802
        return SimpleNamespace(busId=f"00000000:{handle[-1]}A:00.0")


def test_a_lost_gpu_makes_no_other_unusable_and_keeps_its_address(tmp_path: Path) -> None:
    sound, lost = backend(OneLost(), tmp_path, CUDA_VISIBLE_DEVICES="0,1").probe(5.0)
    assert sound.unusable_because is None
    assert lost.unusable_because == "NVML: GPU is lost"
    assert lost.uid == "00000000:1A:00.0"


@pytest.mark.parametrize(
    ("visible", "usable"),
    [
        ("0", [0]),
        ("1", [1]),  # of a GPU in MIG mode the first instance
        ("2", []),  # there are two GPUs, though three devices are listed
        ("GPU-gpu1", [1]),
        ("MIG-gpu1mig1", [2]),
        ("MIG-GPU-gpu1/7/0", [2]),  # as drivers before 470 name it
        (" GPU-gpu0 , 1", [0, 1]),
        ("", []),
    ],
)
def test_devices_that_the_environment_hides_are_not_used(
    tmp_path: Path, visible: str, usable: list[int]
) -> None:
    devices = backend(FakeNvml(), tmp_path, CUDA_VISIBLE_DEVICES=visible).probe(5.0)
    assert [device.index for device in devices if device.unusable_because is None] == usable
    assert all("CUDA_VISIBLE_DEVICES" in d.unusable_because for d in devices if d.unusable_because)


@pytest.mark.parametrize("name", ["GPU-", "MIG-gpu1", "GPU-else", "-1", "NoDevFiles", "5"])
def test_a_name_of_none_or_several_ends_the_list(tmp_path: Path, name: str) -> None:
    devices = backend(FakeNvml(), tmp_path, CUDA_VISIBLE_DEVICES=f"0,{name},1").probe(5.0)
    assert [device.index for device in devices if device.unusable_because is None] == [0]
    assert f"{name!r} names none or several" in (devices[1].unusable_because or "")


class UnlikeGpus(FakeNvml):
    """No MIG; two cards of which CUDA would count the faster first."""

    def nvmlDeviceGetName(self, handle: str) -> str:  # noqa: N802
        return {"gpu0": "NVIDIA L4"}.get(handle, "NVIDIA H100")

    def nvmlDeviceGetMigMode(self, handle: str) -> list[int]:  # noqa: N802
        return [0, 0]


def test_a_number_counts_by_pci_bus_only_where_cuda_is_told_so(tmp_path: Path) -> None:
    def usable(**environment: str) -> list[str]:
        found = backend(UnlikeGpus(), tmp_path, **environment).probe(5.0)
        reasons = [device.unusable_because or "" for device in found]
        assert all("CUDA_DEVICE_ORDER=PCI_BUS_ID" in reason for reason in reasons if "order" in reason)
        return [device.uid for device in found if device.unusable_because is None]

    assert usable(CUDA_VISIBLE_DEVICES="1", CUDA_DEVICE_ORDER="PCI_BUS_ID") == ["GPU-gpu1"]
    assert usable(CUDA_VISIBLE_DEVICES="1") == []
    assert usable(CUDA_VISIBLE_DEVICES="1", CUDA_DEVICE_ORDER="FASTEST_FIRST") == []
    assert usable(CUDA_VISIBLE_DEVICES="GPU-gpu1") == ["GPU-gpu1"]


def test_a_launched_engine_finds_what_it_was_given(tmp_path: Path) -> None:
    """By its own environment, in the order of the ranks."""
    cuda = backend(UnlikeGpus(), tmp_path)
    environment = cuda.launch_env(cuda.probe(5.0)[::-1])
    assert environment["CUDA_VISIBLE_DEVICES"] == "GPU-gpu1,GPU-gpu0"
    assert environment["CUDA_DEVICE_ORDER"] == "PCI_BUS_ID"
    found = backend(UnlikeGpus(), tmp_path, **environment).probe(5.0)
    assert all(device.unusable_because is None for device in found)


def test_bandwidth_is_that_of_the_whole_bus_and_of_no_instance(tmp_path: Path) -> None:
    cuda = backend(FakeNvml(), tmp_path)
    whole, instance, _ = cuda.probe(5.0)
    assert cuda.bandwidth(whole) == pytest.approx(3.352e12, rel=1e-3)  # the data sheet of an H100: 3.35 TB/s
    assert cuda.bandwidth(instance) is None
    assert backend(FakeNvml("nvmlDeviceGetMemoryBusWidth"), tmp_path).bandwidth(whole) is None
