"""The kernels' pool follows the engine's part of the cores."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from own_threads import OwnThreads
from shared_host import SharedHost, best_library

from trivet_cpu.native_pool import NativePool


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="needs two cores")
def test_threads_and_cpus_follow_the_part(tmp_path: Path) -> None:
    library, host, threads = best_library(), SharedHost(tmp_path), OwnThreads()
    num_cpus, cores, other = host.num_cpus, host.share(), host.share()
    pool = NativePool(library, num_cpus, cores)
    with pool.step() as handle:
        assert handle == pool.handle
        assert library.trivet_pool_crew_size(handle) == num_cpus
    other.refresh()
    host.pass_time()
    with pool.step() as handle:
        assert library.trivet_pool_crew_size(handle) == len(cores.cpus) < num_cpus
        assert os.sched_getaffinity(0) == cores.cpus
        threads.cpus(len(cores.cpus) - 1)
    assert len(os.sched_getaffinity(0)) == num_cpus
    other.close()
    host.pass_time()
    with pool.step() as handle:
        assert library.trivet_pool_crew_size(handle) == num_cpus
        assert os.sched_getaffinity(0) == cores.cpus
    pool.close()
    pool.close()
    threads.cpus(0)


def test_more_threads_than_the_host_allows_are_refused_with_words() -> None:
    code = (
        "import resource\n"
        "from trivet.errors import BackendError\n"
        "from trivet_cpu.core_shares import CoreShare\n"
        "from trivet_cpu.host import Host\n"
        "from trivet_cpu.kernel_build import KernelCache, levels_of\n"
        "from trivet_cpu.native_library import load_library\n"
        "from trivet_cpu.native_pool import NativePool\n"
        "library = load_library(KernelCache().library(levels_of(Host().arch())[0]))\n"
        "room = 4 << 30  # bytes of address space: stacks of 8 MB for some hundreds of threads\n"
        "resource.setrlimit(resource.RLIMIT_AS, (room, room))\n"
        "try: NativePool(library, 4000, CoreShare(Host()))\n"
        "except BackendError as error: print(error)\n"
    )
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert ended.returncode == 0, ended.stderr
    assert "does not allow the 4000 threads of num_threads; lower it" in ended.stdout
