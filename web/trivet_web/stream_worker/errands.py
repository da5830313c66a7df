"""What other threads have the worker's main thread do."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from gunicorn.workers.gthread import PollableMethodQueue


class Errands(PollableMethodQueue):  # type: ignore[misc]  # gunicorn has no types
    """gunicorn's queue, which writes nothing once it is closed: its descriptor is somebody else's by then.

    Threads outlive the main loop, and the next file that is opened may be the registry.
    """

    def __init__(self) -> None:
        super().__init__()
        self._is_closed = False
        self._lock = threading.RLock()  # a signal handler defers, too

    def defer(self, callback: Callable[..., None], *args: Any) -> None:
        with self._lock:
            if not self._is_closed:
                super().defer(callback, *args)

    def close(self) -> None:
        with self._lock:
            self._is_closed = True
            super().close()
