"""The log of an engine as it comes from its host: read there in parts, appended here, each byte once.

Both files are cut when they grow too long (`log_bound`), each in its own time, so a place in the one says
nothing of the other. The far place stands in a file here, written after what was read before it.
"""

from __future__ import annotations

import logging
import os
from pathlib import Path

import msgspec

from trivet.engine.log_bound import EARLIER, LogBound
from trivet_supervisor.hosts.agent_calls import LogPosition

logger = logging.getLogger(__name__)

CHUNK_BYTES = 256 << 10
HEAD_BYTES = 4096


def read_log(file: Path, after: LogPosition) -> tuple[bytes, LogPosition, bool]:
    """What stands in the log of an engine behind a place, or a part of it; whether there is more."""
    earlier = file.with_name(file.name + EARLIER)
    cut_ns = _mtime_ns(earlier)
    if cut_ns != after.cut_ns:  # it was cut since: first the end of what was cut off
        if _is_being_cut(file, earlier):
            return b"", after, True
        chunk, offset, has_more = _read(earlier, after.offset)
        if chunk or has_more:
            return chunk, LogPosition(after.cut_ns, offset), True
        after = LogPosition(cut_ns, 0)
    chunk, offset, has_more = _read(file, after.offset)
    return chunk, LogPosition(cut_ns, offset), has_more


def _read(file: Path, offset: int) -> tuple[bytes, int, bool]:
    try:
        with file.open("rb") as log:
            size = log.seek(0, os.SEEK_END)
            log.seek(offset)
            chunk = log.read(CHUNK_BYTES)
    except OSError:
        return b"", offset, False
    return chunk, offset + len(chunk), offset + len(chunk) < size


def _is_being_cut(file: Path, earlier: Path) -> bool:
    """Its copy stands beside it, and it is still as long: for some microseconds."""
    try:
        if file.stat().st_size < earlier.stat().st_size:
            return False
        with file.open("rb") as log, earlier.open("rb") as copy:
            return log.read(HEAD_BYTES) == copy.read(HEAD_BYTES)
    except OSError:
        return False


def _mtime_ns(file: Path) -> int:
    try:
        return file.stat().st_mtime_ns
    except OSError:
        return 0


class _Copied(msgspec.Struct, frozen=True):
    position: LogPosition
    size_bytes: int  # of the copy, then: what is longer was written just before a crash, and comes again


class LogCopy:
    """The copy here; not thread-safe."""

    def __init__(self, file: Path, position_file: Path) -> None:
        """Goes on where the one before ended, if there was one."""
        self._file = file
        self._position_file = position_file
        self.position = LogPosition()
        self.has_failed = False  # what came last could not be written
        try:
            copied = msgspec.json.decode(position_file.read_bytes(), type=_Copied)
            if file.stat().st_size > copied.size_bytes:
                os.truncate(file, copied.size_bytes)
            self.position = copied.position
        except (OSError, msgspec.MsgspecError):
            return  # nothing has come yet, or both begin anew

    def append(self, data: bytes, position: LogPosition) -> None:
        """Where it cannot be written the place stays: it is asked for again."""
        if not data:
            self.position, self.has_failed = position, False
            return
        try:
            self._file.parent.mkdir(parents=True, exist_ok=True)
            with self._file.open("ab", buffering=0) as log:
                before = log.seek(0, os.SEEK_END)
                if log.write(data) != len(data):
                    os.truncate(self._file, before)
                    raise OSError("only a part was written")
                LogBound(log.fileno()).enforce()
            self._remember(position)
        except OSError as error:  # a full disk: the engine goes on, and its own host has the log
            if not self.has_failed:
                logger.warning("log=%s cannot be written: %s", self._file, error)
            self.has_failed = True
            return
        self.position, self.has_failed = position, False

    def _remember(self, position: LogPosition) -> None:
        self._position_file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        scratch = self._position_file.with_suffix(".new")
        scratch.write_bytes(msgspec.json.encode(_Copied(position, self._file.stat().st_size)))
        scratch.replace(self._position_file)

    def forget(self) -> None:
        """All of it has come."""
        self._position_file.unlink(missing_ok=True)
