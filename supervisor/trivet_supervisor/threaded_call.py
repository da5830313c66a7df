"""A call into a stranger's code or to another host, on a thread of its own: it may wait, or hang for ever."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Generic, TypeVar

T = TypeVar("T")


class ThreadedCall(Generic[T]):
    """Begun as it is made; who wants the answer looks whether it is there."""

    def __init__(self, name: str, call: Callable[[], T], since_s: float) -> None:
        """Args: since_s: now, by the caller's clock."""
        self.since_s = since_s
        self._call = call
        self._answers: list[T] = []
        self._failure: BaseException | None = None
        self._on_late: Callable[[T], None] | None = None
        self._lock = threading.Lock()
        # A daemon: one that hangs in a driver must not keep the process from ending.
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    @property
    def has_answered(self) -> bool:
        """Without a failure."""
        return bool(self._answers)

    def is_under_way(self, patience_s: float = 0.0) -> bool:
        """Whether it still waits; asked again after `patience_s` where it does."""
        if patience_s > 0:
            self._thread.join(patience_s)
        return self._thread.is_alive()

    def result(self) -> T:
        """Of one that is not under way. Raises: what the call raised."""
        if self._failure is not None:
            raise self._failure
        return self._answers[0]

    def leave(self, on_late: Callable[[T], None]) -> None:
        """Nobody waits any more. Should it answer all the same, `on_late` is called on a thread, too."""
        with self._lock:
            self._on_late = on_late
            answers = list(self._answers)
        for answer in answers:  # meanwhile
            threading.Thread(target=on_late, args=(answer,), name="late", daemon=True).start()

    def _run(self) -> None:
        try:
            answer = self._call()
        except BaseException as error:  # whatever it is: it is raised again, where it was asked for
            self._failure = error
            return
        with self._lock:
            self._answers.append(answer)
            on_late = self._on_late
        if on_late is not None:
            on_late(answer)
