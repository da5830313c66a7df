"""Confines an engine on this host: the cores it runs on, the memory it may take.

Cores are inherited: this thread moves to them for the moment in which it spawns, so the engine never runs
elsewhere and every rank stays there. Memory is RLIMIT_DATA of each process (setrlimit(2)): the heap and
private mappings, whose allocation then fails in the engine, which says so; the kernel's killer need not come.
Files that are mapped (weights) and a device's memory do not count. A cgroup would count a whole engine,
and needs one delegated to this account: where there is one, start `trivet serve` in it.
"""

from __future__ import annotations

import os
import resource
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from trivet.config import Settings
from trivet.errors import Unavailable
from trivet.launching import Confinement

GIB = 1 << 30


def confinement(settings: Settings, backend: str) -> Confinement:
    """As the site says it of the backend."""
    own = settings.for_backend(backend)
    limit_gib = own.memory_limit_gib
    return Confinement(own.cpu_set(), None if limit_gib is None else int(limit_gib * GIB))


@contextmanager
def on_cpus(cpus: frozenset[int] | None) -> Iterator[None]:
    """What is spawned in the block runs on these only. Raises: Unavailable where the host lacks one."""
    if cpus is None:
        yield
        return
    before = os.sched_getaffinity(0)
    try:
        os.sched_setaffinity(0, cpus)  # of this thread; the kernel leaves out those that are not there
    except OSError as error:
        raise Unavailable(f"no engine can run on cpus {_listed(cpus)}: {error.strerror}") from error
    try:
        missing = cpus - os.sched_getaffinity(0)
        if missing:
            raise Unavailable(
                f"cpus {_listed(missing)} of [backend.NAME] are not to be had; usable are {_listed(before)}"
            )
        yield
    finally:
        os.sched_setaffinity(0, before)


def no_memory_left(backend: str) -> str:
    """Said by an engine's process in which an allocation failed."""
    limit_bytes = resource.getrlimit(resource.RLIMIT_DATA)[0]
    if limit_bytes == resource.RLIM_INFINITY:
        return (
            "the engine's process got no memory from its host; stop what else runs there, or lower "
            "gpu_memory_utilization"
        )
    return (
        f"the engine's process needs more than the {limit_bytes / GIB:.2f} GiB that memory_limit_gib of "
        f"[backend.{backend}] allows it; raise that"
    )


def confine(child: subprocess.Popen[Any], memory_limit_bytes: int | None) -> None:
    """Limit the memory of a child that has just been spawned; its own children inherit it."""
    if memory_limit_bytes is None:
        return
    try:
        resource.prlimit(child.pid, resource.RLIMIT_DATA, (memory_limit_bytes, memory_limit_bytes))
    except OSError as error:
        child.kill()
        child.wait()
        raise Unavailable(f"the memory of an engine cannot be limited: {error.strerror}") from error


def _listed(cpus: frozenset[int] | set[int]) -> str:
    return ",".join(map(str, sorted(cpus)))
