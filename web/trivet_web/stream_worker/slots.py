"""Threads that inference may hold in one web process, and how soon one that was refused should come back."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from trivet.engine.queue_pace import QueuePace
from trivet.errors import Overloaded


class Slots:
    """Thread-safe. The pace is of the slots given back while it is crowded.

    It is crowded from the moment when all are taken until half of them are free: before, how fast requests
    end says nothing of how fast they could.
    """

    def __init__(self, count: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._count = count
        self._num_taken = 0
        self._is_crowded = False
        self._pace = QueuePace(clock)
        self._lock = threading.Lock()

    def take(self) -> Callable[[], None]:
        """Call the result, once, to give it back. Raises: Overloaded."""
        with self._lock:
            if self._num_taken == self._count:
                raise Overloaded(
                    f"this web process holds {self._count} requests already; retry, or raise web_threads "
                    "or web_workers",
                    retry_after_s=self._pace.retry_after_s(self._count / 2),  # half of them free by then
                )
            self._num_taken += 1
            if self._num_taken == self._count and not self._is_crowded:
                self._is_crowded = True
                self._pace.restart()
        return self._give_back

    def _give_back(self) -> None:
        with self._lock:
            self._num_taken -= 1
            if self._is_crowded:
                self._pace.admitted()
            if self._num_taken <= self._count // 2:
                self._is_crowded = False
