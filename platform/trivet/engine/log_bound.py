"""Keeps the file behind standard error small: an engine outlives whoever could rotate it from outside.

The file is copied and cut to nothing in place, because ranks and compilers that an engine has started hold
it open, too; all write at its end (O_APPEND). What is written in between is lost: some microseconds.
"""

from __future__ import annotations

import fcntl
import logging
import os
import shutil
import stat
from pathlib import Path

logger = logging.getLogger(__name__)

MAX_LOG_BYTES = 8 << 20  # of the file; the part before it, of the same size, is kept beside it
EARLIER = ".1"  # appended to the name of the part before


class LogBound:
    """Of one descriptor; does nothing where it is no file that all writers append to."""

    def __init__(self, fd: int = 2, max_bytes: int = MAX_LOG_BYTES) -> None:
        self._fd = fd
        self._max_bytes = max_bytes

    def enforce(self) -> bool:
        """Whether the log was cut."""
        status = os.fstat(self._fd)
        appends = fcntl.fcntl(self._fd, fcntl.F_GETFL) & os.O_APPEND
        if not (stat.S_ISREG(status.st_mode) and appends) or status.st_size <= self._max_bytes:
            return False
        try:
            self._keep_a_copy(Path(os.readlink(f"/proc/self/fd/{self._fd}")))
        except OSError as error:  # a full disk is no reason to fill it further
            logger.warning("the log so far is dropped: %s", error)
        os.ftruncate(self._fd, 0)
        return True

    def _keep_a_copy(self, log: Path) -> None:
        scratch = log.with_name(f"{log.name}.new")
        try:
            shutil.copyfile(log, scratch)
            scratch.chmod(0o600)
            scratch.replace(log.with_name(log.name + EARLIER))
        finally:
            scratch.unlink(missing_ok=True)
