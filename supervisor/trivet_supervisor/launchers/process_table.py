"""What the kernel knows of processes, from /proc (proc(5)): which are alive, and which are ours.

A process is ours if its environment carries our lease. Children inherit it, so the ranks of an engine
are found too, also after the engine itself has died.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from trivet.launching import LEASE_VARIABLE

_TICKS_PER_S = os.sysconf("SC_CLK_TCK")
_MARK = f"{LEASE_VARIABLE}=".encode()
_ENDED_STATES = (b"Z", b"X")


def start_time(pid: int) -> float | None:
    """Seconds since boot at which the process started; None if it has ended (zombies have)."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_bytes()
    except OSError:
        return None
    # The name in parentheses may hold spaces and parentheses; fields are counted from behind it.
    fields = stat[stat.rindex(b")") + 2 :].split()
    return None if fields[0] in _ENDED_STATES else int(fields[19]) / _TICKS_PER_S


def has_lease(pid: int, lease: str) -> bool:
    """Whether the process carries the lease; False for other accounts' processes."""
    try:
        environ = Path(f"/proc/{pid}/environ").read_bytes()
    except OSError:
        return False
    return f"{LEASE_VARIABLE}={lease}".encode() in environ.split(b"\0")


def leased_pids(lease: str) -> Iterator[int]:
    """All living processes with the lease, in no certain order."""
    for entry in os.listdir("/proc"):
        if entry.isdecimal() and has_lease(int(entry), lease) and start_time(int(entry)) is not None:
            yield int(entry)


def leased_processes() -> dict[str, list[int]]:
    """Every living process that carries a lease, by lease; one walk for all of them."""
    found: dict[str, list[int]] = {}
    for entry in os.listdir("/proc"):
        if entry.isdecimal() and (lease := _lease_of(int(entry))) and start_time(int(entry)) is not None:
            found.setdefault(lease, []).append(int(entry))
    return found


def _lease_of(pid: int) -> str:
    try:
        environ = Path(f"/proc/{pid}/environ").read_bytes()
    except OSError:
        return ""
    if _MARK not in environ:
        return ""
    leases = [value[len(_MARK) :] for value in environ.split(b"\0") if value.startswith(_MARK)]
    return leases[0].decode(errors="replace") if leases else ""


def boot_id() -> str:
    """Another after each boot of this host; empty where it has none."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return ""
