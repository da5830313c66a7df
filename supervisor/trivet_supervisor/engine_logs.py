"""Log files of engines: one an attempt, so that a restart never overwrites the crash before it.

An engine bounds its own log (`engine.log_bound`), whose earlier part stands beside it. The log of an
instance's first crash is kept whatever follows.
"""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Collection, Iterable
from pathlib import Path

from trivet.config import Paths
from trivet.engine.log_bound import EARLIER

TAIL_BYTES = 16_384
TAIL_LINES = 20
KEPT_NEWEST = 9  # attempts of an instance, besides the first
KEPT_FILES = 60  # of a deployment, of an instance that starts and all that have ended


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


def first_crash_file(log: Path) -> Path:
    """Where the log of the first crash of an instance is kept, by the log of any of its attempts."""
    instance_id = log.stem.rpartition("-")[0]
    return log.with_name(f"{instance_id}-first-crash.log")


def pin_first_crash(log: Path) -> None:
    """Keep the log of an attempt that has failed, if it is the instance's first; its process is gone."""
    kept = first_crash_file(log)
    for suffix in ("", EARLIER):
        with contextlib.suppress(OSError):  # there already, or never written; or no room for a name
            os.link(f"{log}{suffix}", f"{kept}{suffix}")


def prune(
    paths: Paths, deployment: str, instance_id: str, attempt: int, living: Collection[str] = ()
) -> None:
    """Before `attempt` starts: keep the first attempt's log, which tells why it began, and the newest.

    Those of instances that are living stay, however long their engines have had nothing to say.
    """
    oldest = attempt - KEPT_NEWEST
    if oldest > 1:
        _remove(log_file(paths, deployment, instance_id, oldest))
    folder = log_file(paths, deployment, instance_id, attempt).parent
    ids = {instance_id, *living}
    ended = [file for file in folder.glob("*.log") if file.name.partition("-")[0] not in ids]
    for file in sorted(ended, key=_written_s, reverse=True)[KEPT_FILES - KEPT_NEWEST :]:
        _remove(file)


def remove_logs(paths: Paths, deployments: Iterable[str]) -> None:
    """All logs of deployments that are forgotten."""
    for name in deployments:
        shutil.rmtree(paths.logs / name, ignore_errors=True)


def _remove(log: Path) -> None:
    """A log that cannot be removed, or is gone, must not keep an engine from its start."""
    for suffix in ("", EARLIER):
        with contextlib.suppress(OSError):
            os.unlink(f"{log}{suffix}")


def _written_s(file: Path) -> float:
    """When it was last written to; the oldest of all where it is gone meanwhile."""
    try:
        return file.stat().st_mtime
    except OSError:
        return 0.0
