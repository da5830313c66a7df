"""Log files of engines: one an attempt, so that a restart never overwrites the crash before it."""

from __future__ import annotations

import os
from pathlib import Path

from trivet.config import Paths

TAIL_BYTES = 16_384
TAIL_LINES = 20
KEPT_NEWEST = 9  # besides the first


def log_file(paths: Paths, deployment: str, instance_id: str, attempt: int) -> Path:
    """`logs/NAME/INSTANCE-ATTEMPT.log`."""
    return paths.logs / deployment / f"{instance_id}-{attempt}.log"


def tail(file: Path, num_lines: int = TAIL_LINES) -> str:
    """The last lines, of a progress bar (carriage returns) its last state; empty where there is no file."""
    try:
        with file.open("rb") as log:
            log.seek(max(0, os.fstat(log.fileno()).st_size - TAIL_BYTES))
            text = log.read().decode(errors="replace")
    except OSError:
        return ""
    lines = text.rstrip("\n").split("\n")[-num_lines:]
    return "\n".join(line.rstrip().rpartition("\r")[2] for line in lines)


def prune(paths: Paths, deployment: str, instance_id: str, attempt: int) -> None:
    """Before `attempt` starts: keep the first attempt's log, which tells why it began, and the newest."""
    oldest = attempt - KEPT_NEWEST
    if oldest > 1:
        log_file(paths, deployment, instance_id, oldest).unlink(missing_ok=True)
