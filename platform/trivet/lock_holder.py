"""Who holds a lock file, written into it for the sentence of who is refused."""

from __future__ import annotations

import os
from contextlib import suppress


def write_holder(fd: int, holder: str) -> None:
    """On a full disk the lock holds without a name. Unbuffered: closing the file must not fail either."""
    with suppress(OSError):
        os.ftruncate(fd, 0)
        os.pwrite(fd, holder.encode(), 0)
