"""What this process may use of the host: CPUs, instruction sets, memory.

The machine's figures are not the process's: a container is held by cgroups (version 1 or 2) and by its CPU
affinity, and more threads than that thrash. Everything is read from files below `root`, so that a test
can hand in another machine.
"""

from __future__ import annotations

import os
import platform
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from trivet_cpu.tile_permission import ask_for_tiles

# Instruction sets that decide which arithmetic is fast, by their names in /proc/cpuinfo.
FLAGS = (
    "avx2",
    "avx512f",
    "avx512_vnni",
    "avx512_bf16",
    "avx512_fp16",
    "amx_tile",
    "amx_bf16",
    "amx_int8",
    "asimd",
    "i8mm",
    "bf16",
)
TILE_FLAG = "amx_tile"
UNLIMITED = 1 << 60  # cgroup v1 writes "no limit" as a number near 2**63


@dataclass(frozen=True, slots=True)
class Core:
    """One real core, and those of its hardware threads that may be used."""

    node: int  # of memory (NUMA)
    cpus: frozenset[int]


@dataclass(frozen=True, slots=True)
class Host:
    """A machine as one process sees it."""

    root: Path = Path("/")
    # Asks for the CPU's tiles, for the whole process; the reason where they may not be used.
    ask_for_tiles: Callable[[], str | None] = ask_for_tiles

    # ---- CPUs ----

    def cpu_name(self) -> str:
        return self._cpuinfo().get("model name") or platform.processor() or "CPU"

    def arch(self) -> str:
        """The machine and its fast instruction sets: "x86-64 avx2 avx512_vnni avx512_bf16".

        Those of AMX are left out where this process may not use them: `why_no_tiles`.
        """
        present = self._flags()
        machine = platform.machine().replace("_", "-")
        arch = " ".join([machine, *(flag for flag in FLAGS if flag in present)])
        return arch if self.why_no_tiles() is None else without_tiles(arch)

    def why_no_tiles(self) -> str | None:
        """Why the tiles that the CPU has may not be used; None where they may, or where it has none."""
        return self.ask_for_tiles() if TILE_FLAG in self._flags() else None

    def _flags(self) -> set[str]:
        info = self._cpuinfo()
        return set((info.get("flags") or info.get("Features") or "").split())

    def num_cpus(self, affinity: frozenset[int]) -> int:
        """CPUs to compute with: real cores in `affinity`, no more than the cgroup's quota.

        Two threads of one core share its vector units: matrix products gain nothing from the second.
        """
        quota, cores = self._cpu_quota(), len(self.cores(affinity))
        return max(1, cores if quota is None else min(cores, int(quota)))

    def cores(self, affinity: frozenset[int]) -> tuple[Core, ...]:
        """Real cores of these CPUs, those of a memory node side by side."""
        threads: dict[tuple[str, str], set[int]] = {}
        for cpu in sorted(affinity):
            threads.setdefault(self._core_of(cpu), set()).add(cpu)
        cores = [Core(self._node_of(min(cpus)), frozenset(cpus)) for cpus in threads.values()]
        return tuple(sorted(cores, key=lambda core: (core.node, min(core.cpus))))

    def _core_of(self, cpu: int) -> tuple[str, str]:
        topology = self.root / f"sys/devices/system/cpu/cpu{cpu}/topology"
        core, package = _read(topology / "core_id"), _read(topology / "physical_package_id")
        return (core, package) if core and package else (f"cpu{cpu}", "")

    def _node_of(self, cpu: int) -> int:
        folder = self.root / f"sys/devices/system/cpu/cpu{cpu}"
        numbers = [entry.name.removeprefix("node") for entry in folder.glob("node[0-9]*")]
        return min((int(number) for number in numbers if _is_number(number)), default=0)

    def _cpu_quota(self) -> float | None:
        """CPUs that the tightest enclosing cgroup allows; None without a limit."""
        limits = []
        for group in self._cgroups("cpu"):
            quota, _, period = (_read(group / "cpu.max") or "max").partition(" ")
            if quota == "max":  # version 1, or no limit
                quota, period = _read(group / "cpu.cfs_quota_us"), _read(group / "cpu.cfs_period_us")
            if _is_number(quota) and _is_number(period) and int(period) > 0:
                limits.append(int(quota) / int(period))
        return min(limits, default=None)

    def _cpuinfo(self) -> dict[str, str]:
        """The first processor's fields."""
        fields: dict[str, str] = {}
        for line in _read(self.root / "proc/cpuinfo").splitlines():
            key, _, value = line.partition(":")
            fields.setdefault(key.strip(), value.strip())
        return fields

    # ---- memory ----

    def total_bytes(self) -> int:
        """Of the machine, or less where a cgroup says so."""
        limits = [limit for group in self._cgroups("memory") if (limit := _memory_limit(group)) is not None]
        return min([self._meminfo("MemTotal"), *limits])

    def free_bytes(self) -> int:
        """What can be allocated now: MemAvailable, and what is left in every enclosing cgroup."""
        room = [self._meminfo("MemAvailable")]
        for group in self._cgroups("memory"):
            limit = _memory_limit(group)
            if limit is not None:
                room.append(max(0, limit - _memory_in_use(group)))
        return min(room)

    def _meminfo(self, key: str) -> int:
        for line in _read(self.root / "proc/meminfo").splitlines():
            name, _, value = line.partition(":")
            if name == key:
                return int(value.split()[0]) * 1024
        return 0

    # ---- cgroups ----

    def _cgroups(self, controller: str) -> Iterator[Path]:
        """This process's cgroup of a controller and all that enclose it, innermost first."""
        for line in _read(self.root / "proc/self/cgroup").splitlines():
            number, _, rest = line.partition(":")
            names, _, path = rest.partition(":")
            if number != "0" and controller not in names.split(","):
                continue
            for mount in self._mounts(controller if number != "0" else None):
                # In a container the path may be the host's and the mount its own cgroup: what of the
                # path does not exist below the mount is skipped, the mount itself always counts.
                parts = [part for part in path.split("/") if part and part != ".."]
                for depth in range(len(parts), -1, -1):
                    group = mount.joinpath(*parts[:depth])
                    if group.is_dir():
                        yield group

    def _mounts(self, controller: str | None) -> Iterator[Path]:
        """Where a version 1 controller, or version 2 (None), is mounted."""
        for line in _read(self.root / "proc/self/mountinfo").splitlines():
            mount, _, source = line.partition(" - ")
            kind, _, options = source.partition(" ")
            wanted = kind == "cgroup2" if controller is None else kind == "cgroup"
            if wanted and (controller is None or controller in options.split(" ")[-1].split(",")):
                yield self.root / mount.split(" ")[4].lstrip("/")


def without_tiles(arch: str) -> str:
    """What `Host.arch` would be on a CPU without AMX."""
    return " ".join(flag for flag in arch.split() if not flag.startswith("amx_"))


def usable_cpus() -> frozenset[int]:
    """The CPUs this process may run on."""
    return frozenset(os.sched_getaffinity(0))


def _memory_limit(group: Path) -> int | None:
    for name in ("memory.max", "memory.limit_in_bytes"):
        value = _read(group / name)
        if _is_number(value) and int(value) < UNLIMITED:
            return int(value)
    return None


def _memory_in_use(group: Path) -> int:
    """Without the file pages that the kernel would drop first."""
    used = _read(group / "memory.current") or _read(group / "memory.usage_in_bytes")
    if not _is_number(used):
        return 0
    # Version 1 counts the group alone under the first name, and with all it encloses under the second.
    stat = dict(line.partition(" ")[::2] for line in _read(group / "memory.stat").splitlines())
    droppable = stat.get("total_inactive_file") or stat.get("inactive_file") or "0"
    return max(0, int(used) - (int(droppable) if _is_number(droppable) else 0))


def _is_number(text: str) -> bool:
    return text.isdigit()


def _read(path: Path) -> str:
    """The file's text; empty where it cannot be read."""
    try:
        return path.read_text(errors="replace").strip()
    except OSError:
        return ""
