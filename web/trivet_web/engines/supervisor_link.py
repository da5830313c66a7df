"""The supervisor as the web server sees it: woken after a change, asked at most once a second."""

from __future__ import annotations

import threading
import time
from datetime import UTC, datetime
from typing import NamedTuple

from trivet.config import Paths
from trivet_supervisor.client import SupervisorClient

MAX_AGE_S = 1.0


class SupervisorState(NamedTuple):
    """`as_of` is when it last answered; None: not since this web process started."""

    up: bool
    pid: int | None
    as_of: datetime | None
    problem: str = ""  # what it lives with: why its last turn failed


class SupervisorLink:
    """Thread-safe."""

    def __init__(self, paths: Paths) -> None:
        self._client = SupervisorClient(paths)
        self._lock = threading.Lock()
        self._state = SupervisorState(False, None, None)
        self._asked_s = -MAX_AGE_S

    def wake(self) -> None:
        """It looks at the registry now instead of within its next second; harmless when it is down."""
        self._client.wake()

    def state(self) -> SupervisorState:
        with self._lock:
            now = time.monotonic()
            if now - self._asked_s >= MAX_AGE_S:
                self._asked_s = now
                self._state = self._ask()
            return self._state

    def is_up(self) -> bool:
        return self.state().up

    def _ask(self) -> SupervisorState:
        status = self._client.status()
        if status is None:
            return SupervisorState(False, None, self._state.as_of)
        return SupervisorState(True, status.pid, datetime.now(UTC), status.problem)
