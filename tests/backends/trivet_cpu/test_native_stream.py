"""The kernels' stream follows the engine's part of the cores."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from own_threads import OwnThreads
from shared_host import SharedHost, best_library

from trivet_cpu.native_stream import NativeStream


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="needs two cores")
def test_threads_and_cpus_follow_the_part(tmp_path: Path) -> None:
    """The caller is one of them while it waits; where there is one core, a thread of the stream has it."""
    library, host, threads = best_library(), SharedHost(tmp_path), OwnThreads()
    num_cpus, cores, other = host.num_cpus, host.share(), host.share()
    stream = NativeStream(library, num_cpus, cores)

    stream.handle()
    threads.cpus(num_cpus - 1)
    other.refresh()
    host.pass_time()
    stream.handle()
    assert threads.cpus(max(1, len(cores.cpus) - 1)) != threads.usual
    other.close()
    host.pass_time()
    stream.handle()
    assert threads.cpus(num_cpus - 1) == threads.usual
    stream.wait()
    stream.close()
    stream.close()
    threads.cpus(0)
