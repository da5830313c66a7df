"""The kernels' stream follows the engine's part of the cores."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from trivet_cpu.core_shares import REFRESH_S, CoreShare
from trivet_cpu.host import Host
from trivet_cpu.kernel_build import KernelCache, levels_of
from trivet_cpu.native_library import load_library
from trivet_cpu.native_stream import NativeStream


def _threads() -> dict[str, str]:
    """`Cpus_allowed_list` of each thread of this process."""
    found = {}
    for folder in Path("/proc/self/task").iterdir():
        try:
            lines = (folder / "status").read_text().splitlines()
        except (FileNotFoundError, ProcessLookupError):  # it ended just now
            continue
        fields = dict(line.split(":\t", 1) for line in lines if ":\t" in line)
        found[folder.name] = fields["Cpus_allowed_list"]
    return found


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="needs two cores")
def test_threads_and_cpus_follow_the_part(tmp_path: Path) -> None:
    """The caller is one of them while it waits; where there is one core, a thread of the stream has it."""
    (tmp_path / "host").mkdir()
    (tmp_path / "claims").mkdir()
    now_s = time.time()
    host, num_cpus = Host(tmp_path / "host"), len(os.sched_getaffinity(0))

    def share() -> CoreShare:
        return CoreShare(host, None, lambda: tmp_path / "claims", lambda: now_s)

    library = load_library(KernelCache().library(levels_of(Host().arch())[0]))
    before = _threads()
    cores, other = share(), share()
    stream = NativeStream(library, num_cpus, cores)

    def has_threads(num_threads: int) -> set[str]:
        """Once those that were joined are gone from the kernel's list, too: their CPUs."""
        deadline_s = time.monotonic() + 30
        while (
            len(own := [cpus for thread, cpus in _threads().items() if thread not in before]) != num_threads
        ):
            assert time.monotonic() < deadline_s, own
            time.sleep(0.01)
        return set(own)

    stream.handle()
    has_threads(num_cpus - 1)
    other.refresh()
    now_s += REFRESH_S
    stream.handle()
    assert has_threads(max(1, len(cores.cpus) - 1)) != set(before.values())
    other.close()
    now_s += REFRESH_S
    stream.handle()
    assert has_threads(num_cpus - 1) == set(before.values())
    stream.wait()
    stream.close()
    stream.close()
    has_threads(0)
