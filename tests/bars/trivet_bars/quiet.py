"""Whether the machine is quiet enough for a timed run, and the lock that keeps others from starting one."""

from __future__ import annotations

import fcntl
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

STAT = Path("/proc/stat")
WINDOW_S = 0.3
MAX_BUSY = 0.10  # of all cores; an idle server with its timers takes about 1 %


class NotQuiet(RuntimeError):
    """Somebody else computes on this machine."""


def busy_share(read: Callable[[], str] = STAT.read_text, window_s: float = WINDOW_S) -> float:
    """Share of all cores, 0 to 1, that was busy during a window; what the host of a VM took counts too.

    The load average would tell of the last minute, in which our own runs were.
    """
    before = _jiffies(read())
    time.sleep(window_s)
    total, idle = (after - then for after, then in zip(_jiffies(read()), before, strict=True))
    return 1 - idle / total if total else 0.0


def _jiffies(stat: str) -> tuple[int, int]:
    """All and idle, from the first line of proc(5): user nice system idle iowait irq softirq steal."""
    fields = [int(field) for field in stat.splitlines()[0].split()[1:9]]
    return sum(fields), fields[3] + fields[4]


def wait_until_quiet(
    timeout_s: float, busy: Callable[[], float] = busy_share, clock: Callable[[], float] = time.monotonic
) -> float:
    """The busy share that was accepted. Raises: NotQuiet."""
    end = clock() + timeout_s
    while True:
        share = busy()
        if share <= MAX_BUSY:
            return share
        if clock() >= end:
            raise NotQuiet(
                f"{share:.0%} of the cores were busy for {timeout_s:.0f} s with something else, and at most "
                f"{MAX_BUSY:.0%} may be; end it, or measure all the same with --noisy"
            )


@contextmanager
def locked(file: Path | None) -> Iterator[None]:
    """Hold the lock of this machine's timed runs; None: there is none."""
    if file is None:
        yield
        return
    with file.open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
