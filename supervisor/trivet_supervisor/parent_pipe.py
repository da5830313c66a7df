"""Between `trivet serve` and its children: how a child learns of its parent's end, and says why it left."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable

CANNOT_START = 2  # exit code of both children, another than a crash's: trying again would not help


def watch_pipe(fd: int, on_end: Callable[[], None]) -> None:
    """Call `on_end` when the last writer of the pipe is gone: the parent died, by whatever signal."""

    def wait() -> None:
        while os.read(fd, 4096):
            pass
        on_end()

    threading.Thread(target=wait, name="parent-watch", daemon=True).start()
