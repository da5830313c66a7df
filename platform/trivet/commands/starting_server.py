"""Waits for a server that is just starting: `trivet serve &` and `trivet launch` may stand on one line."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path

from trivet.commands.output import note
from trivet.config import Paths

LIMIT_S = 120.0  # for a serve that holds its home and does not answer yet
POLL_INTERVAL_S = 0.1


def wait_for_start(
    answers: Callable[[], bool],
    paths: Paths,
    patience_s: float = 0.0,
    clock: Callable[[], float] = time.monotonic,
) -> None:
    """Return when the server answers, or when none is starting.

    Args:
        answers: whether it does, by the address that it has left by then.
        patience_s: for a serve that has not got as far as to hold its home.
    """
    begun_s = clock()
    is_told = False
    while not answers():
        waited_s = clock() - begun_s
        is_starting = is_held(paths.lock_file)
        if waited_s > (LIMIT_S if is_starting else patience_s):
            return  # the command's own request says what is wrong
        if is_starting and not is_told:
            note("waiting for the server, which is starting")
            is_told = True
        time.sleep(POLL_INTERVAL_S)


def is_held(file: Path, table: Path = Path("/proc/locks")) -> bool:
    """Whether a process holds a flock(2) on the file. Looked up, not tried: a trial holds it, too."""
    try:
        status = file.stat()
        lines = table.read_text().splitlines()
    except OSError:
        return False
    device = f"{os.major(status.st_dev):02x}:{os.minor(status.st_dev):02x}:{status.st_ino}"
    return any(fields[1] == "FLOCK" and device in fields for line in lines if (fields := line.split()))
