"""What stands behind figures: the machine, its load, and the versions of what ran on it."""

from __future__ import annotations

import os
import platform
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import psutil

from trivet import __version__

CPU_INFO = Path("/proc/cpuinfo")
# Instruction sets that decide which kernels run.
ISA_FLAGS = (
    "avx2",
    "avx_vnni",
    "avx512f",
    "avx512_vnni",
    "avx512_bf16",
    "amx_int8",
    "amx_bf16",
    "asimddp",
    "i8mm",
    "bf16",
    "sve",
)


def machine() -> dict[str, object]:
    """This host. The load average, from before the first run, tells whether it was quiet."""
    info = CPU_INFO.read_text() if CPU_INFO.exists() else ""
    return {
        "cpu": _cpu_name(info),
        "cores": len(os.sched_getaffinity(0)),
        "isa": isa_flags(info),
        "memory_bytes": psutil.virtual_memory().total,
        "system": platform.platform(),
        "python": platform.python_version(),
        "trivet": __version__,
        "torch": _version("torch"),
        "load_average": round(os.getloadavg()[0], 2),
    }


def isa_flags(cpu_info: str) -> list[str]:
    """Of /proc/cpuinfo: `flags` on x86, `Features` on Arm."""
    for line in cpu_info.splitlines():
        name, _, value = line.partition(":")
        if name.strip() in ("flags", "Features"):
            has = set(value.split())
            return [flag for flag in ISA_FLAGS if flag in has]
    return []


def _cpu_name(cpu_info: str) -> str:
    for line in cpu_info.splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()  # Arm kernels write no model name


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None
