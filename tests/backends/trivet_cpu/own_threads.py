"""Threads that the kernels have started in this process."""

from __future__ import annotations

import threading
import time
from pathlib import Path

DEADLINE_S = 30.0


class OwnThreads:
    """Those that are there since, but Python's own."""

    def __init__(self) -> None:
        self._before = _cpus_of_threads()
        self.usual = set(self._before.values())  # `Cpus_allowed_list` of those before

    def cpus(self, num_threads: int) -> set[str]:
        """`Cpus_allowed_list` of them, once there are so many.

        The kernel takes a thread from its list a moment after it could be joined.
        """
        deadline_s = time.monotonic() + DEADLINE_S
        while len(found := self._cpus()) != num_threads:
            assert time.monotonic() < deadline_s, found
            time.sleep(0.01)
        return set(found.values())

    def _cpus(self) -> dict[str, str]:
        known = self._before.keys() | {str(thread.native_id) for thread in threading.enumerate()}
        return {thread: cpus for thread, cpus in _cpus_of_threads().items() if thread not in known}


def _cpus_of_threads() -> dict[str, str]:
    found = {}
    for folder in Path("/proc/self/task").iterdir():
        try:
            lines = (folder / "status").read_text().splitlines()
        except (FileNotFoundError, ProcessLookupError):  # it ended just now
            continue
        fields = dict(line.split(":\t", 1) for line in lines if ":\t" in line)
        found[folder.name] = fields["Cpus_allowed_list"]
    return found
