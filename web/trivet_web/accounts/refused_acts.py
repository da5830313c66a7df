"""How many refused acts of a principal the audit log takes: each entry is a write that waits for the disk."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

PER_MINUTE = 5  # entries of one principal, in each web process
MINUTE_S = 60.0
MAX_KNOWN = 10_000


@dataclass(slots=True)
class _Refused:
    since_s: float
    num_entries: int = 0
    num_left_out: int = 0


class RefusedActs:
    """One a web process. Thread-safe."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._refused: dict[str, _Refused] = {}

    def admit(self, principal: str) -> int | None:
        """One more. Returns: how many were left out since the last entry; None: this one is, too."""
        now_s = self._clock()
        with self._lock:
            if principal not in self._refused and len(self._refused) >= MAX_KNOWN:
                self._refused.clear()
            one = self._refused.setdefault(principal, _Refused(now_s))
            if now_s - one.since_s >= MINUTE_S:
                one.since_s, one.num_entries = now_s, 0
            if one.num_entries >= PER_MINUTE:
                one.num_left_out += 1
                return None
            one.num_entries += 1
            left_out, one.num_left_out = one.num_left_out, 0
            return left_out
