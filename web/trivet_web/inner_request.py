"""A request that the site makes of its own application: holds no thread of the server, can be ended."""

from __future__ import annotations

import threading
from collections.abc import Callable

from flask import request

INNER = "trivet.inner"  # in the environment: no header can put it there


class InnerRequest:
    """Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._is_ended = False
        self._end: Callable[[], None] | None = None

    def on_end(self, end: Callable[[], None]) -> None:
        """Whom `end` calls; at once where it has been called already."""
        with self._lock:
            self._end = end
            if not self._is_ended:
                return
        end()

    def end(self) -> None:
        """Its answer ends as if its client had gone."""
        with self._lock:
            self._is_ended = True
            end = self._end
        if end is not None:
            end()


def inner_request() -> InnerRequest | None:
    """None: it came over a connection."""
    found: InnerRequest | None = request.environ.get(INNER)
    return found
