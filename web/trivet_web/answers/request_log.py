"""The newest requests of this web process, and where each spent its time. No prompt, no answer.

Times are told as lengths from the request's arrival, so that a page can draw them over each other.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from trivet.errors import TrivetError

LENGTH = 1000
RUNNING, DONE, FAILED, CANCELLED = "running", "done", "failed", "cancelled"


@dataclass(slots=True)
class Course:
    """How far a request is; None: not there yet. Written by whoever serves it, read by whoever looks."""

    sent_s: float | None = None  # CLOCK_MONOTONIC: it went to its engine
    queue_s: float | None = None  # that it waited in the engine
    first_s: float | None = None  # CLOCK_MONOTONIC: its first token came
    instance: str = ""


@dataclass(slots=True)
class Entry:
    """One request. `begun_s` and `ended_s` are CLOCK_MONOTONIC, `at_s` seconds since the epoch."""

    id: str
    at_s: float
    begun_s: float
    model: str
    route: str
    who: str
    is_streamed: bool
    course: Course
    stop: Callable[[TrivetError], None]
    adapter: str = ""  # of that model; empty: none
    ended_s: float | None = None
    status: str = RUNNING
    reason: str = ""  # of its end: stop, length, ..., or the code of the error
    prompt_tokens: int = 0
    cached_tokens: int = 0
    completion_tokens: int = 0


class RequestEnded(TrivetError):
    """Somebody who may has ended it, or the server: no other model is asked for it, no batch asks again."""

    status, code = 503, "request_ended"


class RequestLog:
    """Thread-safe."""

    def __init__(self, length: int = LENGTH) -> None:
        self._lock = threading.Lock()
        self._running: dict[str, Entry] = {}
        self._ended: deque[Entry] = deque(maxlen=length)
        self.num_changes = 0

    def begin(self, entry: Entry) -> None:
        with self._lock:
            self._running[entry.id] = entry
            self.num_changes += 1

    def end(self, entry: Entry) -> None:
        """It has its status and its counts."""
        entry.ended_s = time.monotonic()
        entry.stop = _nothing
        with self._lock:
            self._running.pop(entry.id, None)
            self._ended.append(entry)
            self.num_changes += 1

    def newest(self, count: int) -> list[Entry]:
        """Running ones first, then those that ended, the newest of each first."""
        running = self.all_running()
        with self._lock:
            ended = list(self._ended)
        return [*running, *reversed(ended)][:count]

    def all_running(self) -> list[Entry]:
        """The newest first."""
        with self._lock:
            return sorted(self._running.values(), key=lambda one: one.begun_s, reverse=True)

    def running(self, request_id: str) -> Entry | None:
        """None where it has ended, or another web process has it."""
        with self._lock:
            return self._running.get(request_id)


def _nothing(error: TrivetError) -> None:
    """There is nothing to stop any more."""
