"""What `trivet doctor` finds out about the host: Python, torch, plugins, devices, memory, compiler."""

from __future__ import annotations

import ctypes
import os
import re
import shutil
import struct
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Literal

import msgspec

from trivet import __version__
from trivet.commands.devices import PROBE_TIMEOUT_S, probe_all
from trivet.commands.output import GIB, bytes_text
from trivet.config import BackendSettings, load_settings
from trivet.contract import DeviceInfo
from trivet.errors import ConfigError
from trivet.optional_contract import GivesAdvice
from trivet.plugins import load_plugins
from trivet.prober import Prober
from trivet.structured_outputs import INSTALL_COMMAND

OLDEST_PYTHON = (3, 11)
OLDEST_TORCH, NEWEST_TORCH = (2, 10), (2, 14)  # as setup.cfg allows
MIN_FREE_BYTES = 2 * GIB  # below it hardly any model fits beside its KV cache
INTERPRETER_TIMEOUT_S = 20.0
DAY_S = 86_400.0
STA_UNSYNC = 0x40  # of adjtimex(2)
_REPORT_VERSIONS = """
import json
from importlib.metadata import PackageNotFoundError, version
found = {}
for name in ("trivet", "torch", "torch-npu"):
    try:
        found[name] = version(name)
    except PackageNotFoundError:
        pass
print(json.dumps(found))
"""


@dataclass(frozen=True, slots=True)
class Finding:
    """One line of the report; `advice` is there where something is to be done."""

    check: str
    status: Literal["ok", "warn", "fail"]
    text: str
    advice: str = ""


def check_host() -> Iterator[Finding]:
    """All findings about the host, in the order in which one repairs them."""
    yield check_python()
    yield from check_torch(installed_versions(), "torch")
    yield from check_interpreters()
    yield from check_backends()
    yield check_cores()
    yield check_memory_limit()
    yield check_clock()
    yield check_compiler()
    yield check_structured()


def check_python() -> Finding:
    """The interpreter is one that we support."""
    found = sys.version_info[:2]
    text = f"{sys.version.split()[0]} at {sys.executable}"
    if found < OLDEST_PYTHON:
        return Finding("python", "fail", text, "Trivet needs Python 3.11 or newer")
    return Finding("python", "ok", text)


def installed_versions() -> dict[str, str]:
    """Versions of what is in this environment, without importing it."""
    found = {}
    for name in ("trivet", "torch", "torch-npu"):
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found


def check_torch(versions: dict[str, str], check: str) -> Iterator[Finding]:
    """Torch is there, in the range we are tested with, and pairs with torch-npu if that is there."""
    torch = versions.get("torch")
    if torch is None:
        yield Finding(check, "fail", "not installed", "pip install -c docker/constraints.txt .")
        return
    pair = _pair(torch)
    if not OLDEST_TORCH <= pair <= NEWEST_TORCH:
        yield Finding(check, "fail", torch, "pip install 'torch>=2.10,<2.15'")
    else:
        yield Finding(check, "ok", torch)
    npu = versions.get("torch-npu")
    if npu is not None:
        status: Literal["ok", "fail"] = "ok" if _release(npu) == _release(torch) else "fail"
        advice = (
            "" if status == "ok" else f"install the torch-npu release made for torch {torch.split('+')[0]}"
        )
        yield Finding(f"{check}-npu", status, f"{npu} beside torch {torch}", advice)


def _release(version_text: str) -> list[str]:
    """Its three numbers: a torch-npu of 2.13.0 asks for torch 2.13.0, whatever their builds."""
    return re.findall(r"\d+", version_text)[:3]


def _pair(release: str) -> tuple[int, int]:
    major, minor = release.split(".")[:2]
    return int(major), int(minor)


def check_interpreters() -> Iterator[Finding]:
    """Backends with an environment of their own run the same Trivet there."""
    try:
        settings = load_settings()
    except ConfigError:
        return  # check_site reports it
    for name, backend in sorted(settings.backend.items()):
        if backend.python != sys.executable:
            yield from _check_interpreter(f"python of {name}", backend)


def _versions_of(python: str) -> dict[str, str]:
    """As `installed_versions`, of another interpreter.

    Raises: OSError, subprocess.SubprocessError, msgspec.DecodeError where it does not answer.
    """
    done = subprocess.run(
        [python, "-c", _REPORT_VERSIONS],
        capture_output=True,
        encoding="utf-8",
        errors="replace",
        check=True,
        timeout=INTERPRETER_TIMEOUT_S,
    )
    return msgspec.json.decode(done.stdout, type=dict[str, str])


def _versions_for(backend: str) -> dict[str, str]:
    """What the engines of a backend find; nothing where its interpreter fails, which is told elsewhere."""
    try:
        python = load_settings().for_backend(backend).python
        return installed_versions() if python == sys.executable else _versions_of(python)
    except (ConfigError, OSError, subprocess.SubprocessError, msgspec.DecodeError):
        return {}


def _check_interpreter(check: str, backend: BackendSettings) -> Iterator[Finding]:
    try:
        versions = _versions_of(backend.python)
    except (OSError, subprocess.SubprocessError, msgspec.DecodeError) as error:
        advice = f"correct python of [backend.{check.removeprefix('python of ')}] in trivet.toml"
        yield Finding(check, "fail", f"{backend.python}: {_why_silent(error)}", advice)
        return
    theirs = versions.get("trivet")
    if theirs != __version__:
        advice = f"install trivet {__version__} there: engine and supervisor must be of one version"
        yield Finding(check, "fail", f"{backend.python} has trivet {theirs or 'not installed'}", advice)
    else:
        yield Finding(check, "ok", f"{backend.python}, trivet {theirs}")
    yield from check_torch(versions, f"torch of {check.removeprefix('python of ')}")


def _why_silent(error: Exception) -> str:
    """Of an interpreter that fails its own last words, not the script it was given."""
    if isinstance(error, subprocess.CalledProcessError):
        said = str(error.stderr).strip().rpartition("\n")[2]
        return f"exit code {error.returncode}{f': {said[:300]}' if said else ''}"
    if isinstance(error, subprocess.TimeoutExpired):
        return f"it does not answer within {error.timeout:g} s"
    return str(error)


def check_backends() -> Iterator[Finding]:
    """Plugins load, and at least one device can run a model."""
    host = load_plugins()
    for error in host.failures.values():
        advice = "" if "uninstall" in str(error) else "repair or uninstall the plugin"
        yield Finding("plugins", "fail", str(error), advice)
    backends = host.backends
    yield Finding("plugins", "ok", f"backends {', '.join(sorted(backends))}")
    prober = Prober()
    found = probe_all(prober, backends)
    for name, devices in found.items():
        yield from _check_devices(name, devices)
        if not devices:
            absent = prober.why_absent(name, backends[name], PROBE_TIMEOUT_S)
            yield Finding(f"backend {name}", "ok", f"absent: {absent}")
        if not isinstance(backends[name], GivesAdvice):
            continue
        for line in prober.advice(name, backends[name], _versions_for(name), PROBE_TIMEOUT_S):
            yield Finding(f"backend {name}", line.status, line.text, line.cure)
    if not any(device.unusable_because is None for devices in found.values() for device in devices):
        yield Finding("devices", "fail", "no backend has a usable device", "see the reasons above")


def _check_devices(name: str, devices: list[DeviceInfo]) -> Iterator[Finding]:
    for device in devices:
        if device.unusable_because is not None:
            yield Finding(
                f"backend {name}", "warn", f"{device.name or device.uid}: {device.unusable_because}"
            )
            continue
        memory = f"{bytes_text(device.free_bytes)} of {bytes_text(device.total_bytes)} free"
        text = f"{device.name} ({device.arch}), {memory}"
        if device.free_bytes < MIN_FREE_BYTES:
            yield Finding(f"backend {name}", "warn", text, "free some memory or raise the cgroup's limit")
        else:
            yield Finding(f"backend {name}", "ok", text)


def check_cores(cpu_max: Path = Path("/sys/fs/cgroup/cpu.max")) -> Finding:
    """The cores this process may use: its affinity, and the quota of its cgroup (version 2)."""
    cores = len(os.sched_getaffinity(0))
    try:
        quota, period = cpu_max.read_text().split()
        limit = None if quota == "max" else int(quota) / int(period)
    except (OSError, ValueError):
        limit = None
    if limit is not None and limit < cores:
        return Finding("cores", "ok", f"{limit:g} by the cgroup's quota, of {cores} by affinity")
    return Finding("cores", "ok", f"{cores}, no quota below that")


def check_memory_limit(cgroup: Path = Path("/sys/fs/cgroup")) -> Finding:
    """The limit of the cgroup (version 2), and how often it has killed a process."""
    try:
        limit = (cgroup / "memory.max").read_text().strip()
        used = int((cgroup / "memory.current").read_text())
        events = dict(line.split() for line in (cgroup / "memory.events").read_text().splitlines())
    except (OSError, ValueError):
        return Finding("cgroup", "ok", "no limit of memory is told")
    num_kills = int(events.get("oom_kill", 0))
    text = f"{bytes_text(used)} used, "
    text += "no limit" if limit == "max" else f"limit {bytes_text(int(limit))}"
    if num_kills:
        advice = "lower gpu_memory_utilization of what runs here, or raise the limit"
        return Finding("cgroup", "warn", f"{text}; {num_kills} processes were killed for it", advice)
    return Finding("cgroup", "ok", text)


def check_clock(now: Callable[[], float] = time.time, is_synchronised: bool | None = None) -> Finding:
    """The time of day is right; Trivet's deadlines do not depend on it, but expiries and logs do."""
    built = Path(__file__).stat().st_mtime
    if now() < built - DAY_S:
        when = time.strftime("%Y-%m-%d", time.gmtime(now()))
        return Finding("clock", "fail", f"it says {when}, before Trivet was installed", "set the clock")
    synchronised = kernel_clock_is_synchronised() if is_synchronised is None else is_synchronised
    if synchronised is False:
        advice = "start chrony, ntpd or systemd-timesyncd, unless the host has another source of time"
        return Finding("clock", "warn", "the kernel says that it is not synchronised", advice)
    return Finding("clock", "ok", "plausible" if synchronised is None else "synchronised")


def kernel_clock_is_synchronised() -> bool | None:
    """By adjtimex(2); None where it cannot be asked."""
    status_offset, size = 40, 256  # of `status` in struct timex on 64-bit Linux; the struct has 208 bytes
    timex = ctypes.create_string_buffer(size)
    try:
        state = ctypes.CDLL(None, use_errno=True).adjtimex(timex)
    except (OSError, AttributeError):
        return None
    if state < 0:
        return None
    (status,) = struct.unpack_from("i", timex.raw, status_offset)
    return not status & STA_UNSYNC


def check_compiler() -> Finding:
    """The CPU backend builds its kernels with it; without one it runs on torch."""
    found = next((path for name in ("g++", "c++", "clang++") if (path := shutil.which(name))), None)
    if found is not None:
        return Finding("compiler", "ok", found)
    return Finding(
        "compiler",
        "warn",
        "none found: the CPU backend runs on torch, several times slower than on its own kernels",
        "install g++ (Debian: apt-get install g++)",
    )


def check_structured() -> Finding:
    """The package behind `response_format` and `structured_outputs`; all else works without it."""
    try:
        return Finding("structured", "ok", f"llguidance {version('llguidance')}")
    except PackageNotFoundError:
        return Finding(
            "structured",
            "warn",
            "llguidance is not installed: response_format and structured_outputs answer 400",
            f"install it: {INSTALL_COMMAND}",
        )
