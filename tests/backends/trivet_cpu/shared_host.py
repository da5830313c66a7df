"""A host whose cores several engines share, in a folder, over a clock that stands."""

from __future__ import annotations

import ctypes
import os
import time
from pathlib import Path

from trivet_cpu.core_shares import REFRESH_S, CoreShare
from trivet_cpu.host import Host
from trivet_cpu.kernel_build import KernelCache, levels_of
from trivet_cpu.native_library import load_library


class SharedHost:
    """Each usable CPU is a core; no quota."""

    def __init__(self, folder: Path) -> None:
        self._claims, self._now_s = folder / "claims", time.time()
        (folder / "host").mkdir()
        self._claims.mkdir()
        self._host = Host(folder / "host")
        self.num_cpus = len(os.sched_getaffinity(0))

    def share(self) -> CoreShare:
        """Of one more engine."""
        return CoreShare(self._host, None, lambda: self._claims, lambda: self._now_s)

    def pass_time(self) -> None:
        """So much that each looks for the others again."""
        self._now_s += REFRESH_S


def best_library() -> ctypes.CDLL:
    """The kernels of this CPU's own level."""
    return load_library(KernelCache().library(levels_of(Host().arch())[0]))
