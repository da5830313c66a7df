"""Asks NVIDIA's management library about the GPUs, through nvidia-ml-py where that is installed.

It tells more than nvidia-smi's table and takes milliseconds instead of a second. Nothing of CUDA is opened.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NamedTuple, TypeVar

from trivet.optional_contract import DeviceUsage, DeviceUser

T = TypeVar("T")


class WholeGpu(NamedTuple):
    """A GPU, in MIG mode or not."""

    number: int  # by PCI bus
    uid: str
    name: str


@dataclass(frozen=True, slots=True)
class Gpu:
    """What is known of one GPU, or one MIG instance of it; `fault` is empty where it is sound."""

    index: int
    uid: str  # UUID, or the PCI address where the driver does not tell
    name: str
    compute_capability: str = ""  # "9.0"
    total_bytes: int = 0
    free_bytes: int = 0
    driver: str = ""
    fault: str = ""
    usage: DeviceUsage | None = None
    bandwidth: float | None = None  # bytes/s of its memory; of an instance of MIG it is not told
    whole: WholeGpu | None = None  # where it is not all that is listed here
    old_name: str = ""  # of an instance of MIG, before driver 470: "MIG-GPU-.../1/0"

    @property
    def on(self) -> WholeGpu:
        """The GPU that it is, or is an instance of."""
        return self.whole or WholeGpu(self.index, self.uid, self.name)


def load_nvml() -> Any:
    """The module. Raises: ImportError."""
    return importlib.import_module("pynvml")


def find_by_nvml(load: Callable[[], Any]) -> tuple[list[Gpu], str]:
    """All GPUs in NVML's order, instances of MIG in place of their GPU; or none and why it cannot tell."""
    try:
        nvml = load()
    except ImportError:
        return [], "nvidia-ml-py is not installed"
    try:
        nvml.nvmlInit()
    except nvml.NVMLError as error:
        return [], f"NVML does not start: {error}"
    try:
        driver = _text(nvml.nvmlSystemGetDriverVersion())
        found: list[Gpu] = []
        for number in range(nvml.nvmlDeviceGetCount()):
            listed, whole = _gpus(nvml, number, driver, len(found))
            found += [replace(gpu, whole=whole) for gpu in listed]
        return found, ""
    except nvml.NVMLError as error:
        return [], f"NVML fails: {error}"
    finally:
        with suppress(nvml.NVMLError):
            nvml.nvmlShutdown()


def _gpus(nvml: Any, number: int, driver: str, first: int) -> tuple[list[Gpu], WholeGpu]:
    """The GPU, or its instances; a lost one stays listed with the reason."""
    handle = None
    try:
        handle = nvml.nvmlDeviceGetHandleByIndex(number)
        name, uid = _text(nvml.nvmlDeviceGetName(handle)), _text(nvml.nvmlDeviceGetUUID(handle))
        major, minor = nvml.nvmlDeviceGetCudaComputeCapability(handle)
    except nvml.NVMLError as error:
        lost_uid = _lost_uid(nvml, handle) or f"gpu-{number}"
        lost = Gpu(first, lost_uid, "NVIDIA GPU", driver=driver, fault=f"NVML: {error}")
        return [lost], WholeGpu(number, lost.uid, lost.name)
    whole = WholeGpu(number, uid, name)
    capability = f"{major}.{minor}"
    if _asked(nvml, lambda: nvml.nvmlDeviceGetMigMode(handle)[0]) != 1:
        return [_gpu(nvml, handle, first, uid, name, capability, driver)], whole
    instances = list(_instances(nvml, handle))
    if not instances:
        fault = (
            "MIG is enabled on it and it has no instance; create some with nvidia-smi mig -cgi ... -C, or "
            "disable MIG with nvidia-smi -mig 0"
        )
        return [Gpu(first, uid, name, capability, driver=driver, fault=fault)], whole
    found = []
    for i, each in enumerate(instances):
        own = _text(nvml.nvmlDeviceGetUUID(each)), f"{name} MIG {i}"
        gpu = _gpu(nvml, each, first + i, *own, capability, driver)
        found.append(replace(gpu, old_name=_old_name(nvml, each, uid)))
    return found, whole


def _lost_uid(nvml: Any, handle: Any) -> str:
    """UUID or PCI address, which the driver keeps of a GPU that it cannot reach; empty without a handle."""
    if handle is None:
        return ""
    uid = _asked(nvml, lambda: _text(nvml.nvmlDeviceGetUUID(handle)))
    return uid or _asked(nvml, lambda: _text(nvml.nvmlDeviceGetPciInfo(handle).busId)) or ""


def _old_name(nvml: Any, instance: Any, uid: str) -> str:
    numbers = [
        _asked(nvml, partial(ask, instance))
        for ask in (nvml.nvmlDeviceGetGpuInstanceId, nvml.nvmlDeviceGetComputeInstanceId)
    ]
    return "" if None in numbers else f"MIG-{uid}/{numbers[0]}/{numbers[1]}"


def _instances(nvml: Any, handle: Any) -> Iterator[Any]:
    for place in range(_asked(nvml, lambda: int(nvml.nvmlDeviceGetMaxMigDeviceCount(handle))) or 0):
        with suppress(nvml.NVMLError):  # a place without an instance
            yield nvml.nvmlDeviceGetMigDeviceHandleByIndex(handle, place)


def _gpu(nvml: Any, handle: Any, index: int, uid: str, name: str, capability: str, driver: str) -> Gpu:
    memory = _asked(nvml, lambda: nvml.nvmlDeviceGetMemoryInfo(handle))
    if memory is None:
        fault = "NVML does not tell its memory; see nvidia-smi -q for the state of the GPU"
        return Gpu(index, uid, name, capability, driver=driver, fault=fault)
    power_mw = _asked(nvml, lambda: nvml.nvmlDeviceGetPowerUsage(handle))
    usage = DeviceUsage(
        used_bytes=int(memory.used),
        total_bytes=int(memory.total),
        utilisation_percent=_asked(nvml, lambda: int(nvml.nvmlDeviceGetUtilizationRates(handle).gpu)),
        temperature_c=_asked(
            nvml, lambda: int(nvml.nvmlDeviceGetTemperature(handle, nvml.NVML_TEMPERATURE_GPU))
        ),
        power_w=None if power_mw is None else power_mw / 1000,
        users=_users(nvml, handle),
    )
    total, free = int(memory.total), int(memory.free)
    bandwidth = _bandwidth(nvml, handle)
    return Gpu(index, uid, name, capability, total, free, driver, usage=usage, bandwidth=bandwidth)


def _bandwidth(nvml: Any, handle: Any) -> float | None:
    """Two transfers a clock over the whole bus: 3.35 TB/s of an H100 (2,619 MHz, 5,120 bits)."""
    clock_mhz = _asked(nvml, lambda: int(nvml.nvmlDeviceGetMaxClockInfo(handle, nvml.NVML_CLOCK_MEM)))
    width_bits = _asked(nvml, lambda: int(nvml.nvmlDeviceGetMemoryBusWidth(handle)))
    return 2e6 * clock_mhz * width_bits / 8 if clock_mhz and width_bits else None


def _users(nvml: Any, handle: Any) -> tuple[DeviceUser, ...] | None:
    """By the pids of this process's namespace: NVML leaves out those that are not visible in it."""
    processes = _asked(nvml, lambda: list(nvml.nvmlDeviceGetComputeRunningProcesses(handle)))
    if processes is None:
        return None
    return tuple(DeviceUser(int(each.pid), each.usedGpuMemory or None) for each in processes)


def _asked(nvml: Any, ask: Callable[[], T]) -> T | None:
    """The answer; None where this GPU does not tell."""
    try:
        return ask()
    except nvml.NVMLError:
        return None


def _text(answer: str | bytes) -> str:
    """Older releases of nvidia-ml-py answer in bytes."""
    return answer.decode() if isinstance(answer, bytes) else answer
