"""What the host offers, on made-up machines: affinity, quotas and limits of both cgroup versions."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest

from trivet_cpu.backend import CpuBackend
from trivet_cpu.host import Host, usable_cpus

GIB = 1 << 30
MEMINFO = f"MemTotal: {64 * GIB // 1024} kB\nMemFree: 1 kB\nMemAvailable: {48 * GIB // 1024} kB\n"
CPUINFO = "processor : 0\nmodel name : Some CPU @ 3 GHz\nflags : fpu avx2 avx512f avx512_vnni avx512_bf16\n\n"
V2_MOUNT = "31 23 0:28 / /sys/fs/cgroup rw,nosuid - cgroup2 cgroup2 rw\n"
V1_MOUNTS = (
    "32 31 0:29 / /sys/fs/cgroup/cpu,cpuacct rw - cgroup cgroup rw,cpu,cpuacct\n"
    "35 31 0:32 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n"
)
NO_LIMIT = "9223372036854771712"


def _host(root: Path, files: Mapping[str, str] | None = None, cores: int = 8, threads: int = 1) -> Host:
    """A machine of `cores` cores with `threads` hardware threads each."""
    topology = {
        f"sys/devices/system/cpu/cpu{cpu}/topology/{name}": value
        for cpu in range(cores * threads)
        for name, value in (("core_id", str(cpu % cores)), ("physical_package_id", "0"))
    }
    for path, text in {
        "proc/meminfo": MEMINFO,
        "proc/cpuinfo": CPUINFO,
        **topology,
        **(files or {}),
    }.items():
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_text(text)
    return Host(root)


def _v2(path: str, files: Mapping[str, str]) -> dict[str, str]:
    return {"proc/self/cgroup": f"0::{path}\n", "proc/self/mountinfo": V2_MOUNT} | {
        f"sys/fs/cgroup/{name}": text for name, text in files.items()
    }


def _v1(path: str, files: Mapping[str, str]) -> dict[str, str]:
    return {
        "proc/self/cgroup": f"5:cpu,cpuacct:{path}\n3:memory:{path}\n0::/\n",
        "proc/self/mountinfo": V1_MOUNTS,
    } | {f"sys/fs/cgroup/{name}": text for name, text in files.items()}


def _v1_cpu(path: str, folder: str, quota: str) -> dict[str, str]:
    place = f"cpu,cpuacct{folder}"
    return _v1(path, {f"{place}/cpu.cfs_quota_us": quota, f"{place}/cpu.cfs_period_us": "100000"})


def test_without_cgroup_limits_the_machine_counts(tmp_path: Path) -> None:
    host = _host(tmp_path)
    assert host.num_cpus(frozenset(range(8))) == 8
    assert (host.total_bytes(), host.free_bytes()) == (64 * GIB, 48 * GIB)


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        (_v2("/box", {"box/cpu.max": "300000 100000"}), 3),
        (_v2("/box", {"box/cpu.max": "max 100000"}), 8),
        (_v2("/outer/inner", {"outer/cpu.max": "200000 100000", "outer/inner/cpu.max": "max 100000"}), 2),
        (_v2("/", {"cpu.max": "50000 100000"}), 1),
        (_v1_cpu("/box", "/box", "250000"), 2),
        (_v1_cpu("/box", "/box", "-1"), 8),
        # In a container: the path is the host's, the mount is its own cgroup.
        (_v1_cpu("/docker/abc", "", "400000"), 4),
    ],
    ids=["v2", "v2 no limit", "v2 outer limit", "v2 half a CPU", "v1", "v1 no limit", "v1 container"],
)
def test_cpus_are_those_of_the_quota(tmp_path: Path, files: Mapping[str, str], expected: int) -> None:
    assert _host(tmp_path, files).num_cpus(frozenset(range(8))) == expected


def test_cpus_are_those_of_the_affinity(tmp_path: Path) -> None:
    files = _v2("/box", {"box/cpu.max": "600000 100000"})
    assert _host(tmp_path, files).num_cpus(frozenset({1, 5, 6})) == 3


def test_two_hardware_threads_of_a_core_count_once(tmp_path: Path) -> None:
    assert _host(tmp_path, cores=4, threads=2).num_cpus(frozenset(range(8))) == 4


def test_cores_of_a_memory_node_stand_side_by_side(tmp_path: Path) -> None:
    nodes = {f"sys/devices/system/cpu/cpu{cpu}/node{cpu % 2}/cpulist": "" for cpu in range(8)}
    cores = _host(tmp_path, nodes, cores=4, threads=2).cores(frozenset(range(8)))
    assert [(core.node, sorted(core.cpus)) for core in cores] == [
        (0, [0, 4]),
        (0, [2, 6]),
        (1, [1, 5]),
        (1, [3, 7]),
    ]


@pytest.mark.parametrize(
    ("files", "total", "free"),
    [
        (
            _v2(
                "/box",
                {
                    "box/memory.max": str(8 * GIB),
                    "box/memory.current": str(5 * GIB),
                    "box/memory.stat": f"anon 1\ninactive_file {2 * GIB}\n",
                },
            ),
            8 * GIB,
            5 * GIB,
        ),
        (_v2("/box", {"box/memory.max": "max"}), 64 * GIB, 48 * GIB),
        (
            _v1(
                "/box",
                {
                    "memory/box/memory.limit_in_bytes": str(8 * GIB),
                    "memory/box/memory.usage_in_bytes": str(5 * GIB),
                    "memory/box/memory.stat": f"inactive_file 7\ntotal_inactive_file {GIB}\n",
                },
            ),
            8 * GIB,
            4 * GIB,
        ),
        (_v1("/box", {"memory/box/memory.limit_in_bytes": NO_LIMIT}), 64 * GIB, 48 * GIB),
        (
            _v2(
                "/outer/inner",
                {
                    "outer/memory.max": str(4 * GIB),
                    "outer/memory.current": str(4 * GIB),
                    "outer/inner/memory.max": str(32 * GIB),
                    "outer/inner/memory.current": str(GIB),
                },
            ),
            4 * GIB,
            0,
        ),
    ],
    ids=["v2", "v2 no limit", "v1", "v1 no limit", "v2 outer limit"],
)
def test_memory_is_that_of_the_tightest_cgroup(
    tmp_path: Path, files: Mapping[str, str], total: int, free: int
) -> None:
    host = _host(tmp_path, files)
    assert (host.total_bytes(), host.free_bytes()) == (total, free)


def test_the_probe_names_cpu_and_instruction_sets(tmp_path: Path) -> None:
    (device,) = CpuBackend(_host(tmp_path)).probe(1.0)
    assert (device.uid, device.name, device.unusable_because) == ("host", "Some CPU @ 3 GHz", None)
    assert device.arch.endswith(" avx2 avx512f avx512_vnni avx512_bf16")
    assert device.total_bytes == 64 * GIB


def test_threads_of_the_engine_are_affinity_and_quota(tmp_path: Path) -> None:
    backend = CpuBackend(_host(tmp_path, _v2("/box", {"box/cpu.max": "100000 100000"}), cores=64))
    assert backend.launch_env(backend.probe(1.0))["OMP_NUM_THREADS"] == "1"


def test_an_engine_on_the_cpu_sees_no_gpu(tmp_path: Path) -> None:
    assert CpuBackend(_host(tmp_path)).launch_env([])["CUDA_VISIBLE_DEVICES"] == ""


def test_the_real_host_is_described() -> None:
    (device,) = CpuBackend().probe(1.0)
    assert 0 < device.free_bytes <= device.total_bytes
    assert 1 <= Host().num_cpus(usable_cpus()) <= len(usable_cpus())
