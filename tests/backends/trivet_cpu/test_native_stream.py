"""The kernels' stream follows the engine's part of the cores."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest
from own_threads import OwnThreads

from trivet_cpu.core_shares import REFRESH_S, CoreShare
from trivet_cpu.host import Host
from trivet_cpu.kernel_build import KernelCache, levels_of
from trivet_cpu.native_library import load_library
from trivet_cpu.native_stream import NativeStream


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
    threads = OwnThreads()
    cores, other = share(), share()
    stream = NativeStream(library, num_cpus, cores)

    stream.handle()
    threads.cpus(num_cpus - 1)
    other.refresh()
    now_s += REFRESH_S
    stream.handle()
    assert threads.cpus(max(1, len(cores.cpus) - 1)) != threads.usual
    other.close()
    now_s += REFRESH_S
    stream.handle()
    assert threads.cpus(num_cpus - 1) == threads.usual
    stream.wait()
    stream.close()
    stream.close()
    threads.cpus(0)
