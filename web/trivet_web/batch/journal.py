"""OUT.partial: the answered lines of a batch, in the order in which they were answered.

A run that dies at any moment leaves whole rows and at most one that is cut, which is dropped when the run is
taken up again: nothing is lost, nothing is answered twice. Rows are written at once, which a killed process
survives, and brought to the disk every few seconds, for the case that the host goes down: the rows of the
last seconds are answered again then.

    {"version":1,"about":{"input sha256":"...","model":"...", ...}}
    17 0 42 {"id":...}        index of the line, 1 if it failed, completion tokens, the result
"""

from __future__ import annotations

import fcntl
import os
import re
import time
from array import array
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO

import msgspec

from trivet.errors import ConfigError

SYNC_S = 5.0
VERSION = 1
_NOT_DONE = -1
_ROW = re.compile(rb"(\d{1,18}) ([01]) (\d{1,18}) (?=\{)")


class JournalHeld(ConfigError):
    """Another run of the same batch writes it."""


class JournalUnwritable(ConfigError):
    """The disk is full, or may not be written."""


@dataclass(slots=True)
class Tally:
    """Of all lines that have an answer."""

    lines: int = 0
    failed: int = 0
    tokens: int = 0  # of completions


class _Header(msgspec.Struct):
    version: int
    about: dict[str, str]


class Journal:
    """The only writer of its file: a second run of the same batch is refused."""

    def __init__(self, out: Path, about: Mapping[str, str], num_lines: int) -> None:
        """Takes up what is there, or begins.

        Raises: JournalUnwritable; JournalHeld; ConfigError where it was begun for something else (naming
            what differs).
        """
        self.path = out.with_name(f"{out.name}.partial")
        self.tally = Tally()
        self._out = out
        self._places = array("q", [_NOT_DONE]) * num_lines  # of each line's row in the file
        try:
            self._file: IO[bytes] = open(self.path, "a+b", buffering=0)  # noqa: SIM115  # closed by close()
        except OSError as error:
            raise JournalUnwritable(f"-o {out}: {error.strerror}") from error
        try:
            self._lock()
            self._take_up(dict(about))
        except BaseException:
            self._file.close()
            raise
        self._synced_s = time.monotonic()

    def is_done(self, index: int) -> bool:
        return self._places[index] != _NOT_DONE

    def append(self, index: int, result: bytes, *, is_failed: bool, num_tokens: int) -> None:
        """A line's result, which is one line of JSON. Raises: JournalUnwritable."""
        assert not self.is_done(index), index
        row = b"%d %d %d %s\n" % (index, is_failed, num_tokens, result)
        place = self._file.seek(0, os.SEEK_END)
        try:
            if self._file.write(row) != len(row):
                raise OSError(None, "no space is left for a whole row")
        except OSError as error:
            raise JournalUnwritable(
                f"{self.path}: {error.strerror}; make room and give the command again"
            ) from error
        self._count(index, place, is_failed=is_failed, num_tokens=num_tokens)
        if time.monotonic() - self._synced_s > SYNC_S:
            self.sync()

    def sync(self) -> None:
        """Bring what has been written to the disk."""
        os.fsync(self._file.fileno())
        self._synced_s = time.monotonic()

    def finish(self, *, with_gaps: bool = False) -> None:
        """Write the results in the input's order under their name, and remove the journal.

        Killed on the way, it leaves the journal, from which the next run finishes.

        Args: with_gaps: lines may be without an answer.
        """
        assert with_gaps or self.tally.lines == len(self._places), "every line is answered"
        self.sync()
        new = self._out.with_name(f"{self._out.name}.new")
        try:
            with new.open("wb") as sorted_file, self.path.open("rb") as rows:
                for place in self._places:
                    if place == _NOT_DONE:
                        continue
                    rows.seek(place)
                    row = rows.readline()
                    sorted_file.write(row[row.index(b"{") :])
                sorted_file.flush()
                os.fsync(sorted_file.fileno())
            new.replace(self._out)
        except OSError as error:
            raise JournalUnwritable(f"-o {self._out}: {error.strerror}; give the command again") from error
        self.path.unlink()

    def close(self) -> None:
        """Idempotent. A journal without a row is removed. Raises: OSError; it is closed all the same."""
        if self._file.closed:
            return
        try:
            self.sync()
        finally:
            self._file.close()  # and with it the lock
        if not self.tally.lines:
            self.path.unlink(missing_ok=True)

    # ---- taking up ----

    def _lock(self) -> None:
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise JournalHeld(
                f"{self.path} is written by another run of this batch; wait for it, or end it"
            ) from None
        except OSError as error:  # a file system without locks
            raise ConfigError(
                f"{self.path} cannot be locked: {error.strerror}; use another folder"
            ) from error

    def _take_up(self, about: dict[str, str]) -> None:
        self._file.seek(0)
        with open(self._file.fileno(), "rb", closefd=False) as rows:
            first = rows.readline()
            if not first.endswith(b"\n"):  # new, or killed while it was begun
                self._file.truncate(0)
                self._file.write(msgspec.json.encode(_Header(VERSION, about)) + b"\n")
                return
            _refuse_others(self.path, first, about)
            place = len(first)
            for row in rows:
                found = _ROW.match(row)
                if found is None or not row.endswith(b"}\n"):
                    break
                index, failed, tokens = (int(part) for part in found.groups())
                if index >= len(self._places) or self.is_done(index):
                    break
                self._count(index, place, is_failed=bool(failed), num_tokens=tokens)
                place += len(row)
        self._file.truncate(place)

    def _count(self, index: int, place: int, *, is_failed: bool, num_tokens: int) -> None:
        self._places[index] = place
        self.tally.lines += 1
        self.tally.failed += is_failed
        self.tally.tokens += num_tokens


def begun_for(out: Path) -> dict[str, str] | None:
    """What an unfinished run of this output was begun for; None where there is none."""
    try:
        with out.with_name(f"{out.name}.partial").open("rb") as file:
            return msgspec.json.decode(file.readline(), type=_Header).about
    except (OSError, msgspec.MsgspecError):
        return None


def _refuse_others(path: Path, first: bytes, about: dict[str, str]) -> None:
    """Raises: ConfigError naming what differs."""
    remedy = f"give the same command to go on, or delete {path} to start over"
    try:
        header = msgspec.json.decode(first, type=_Header)
    except msgspec.MsgspecError:
        header = _Header(0, {})
    if header.version != VERSION:
        raise ConfigError(f"{path} is no journal of this version of `trivet generate`; delete it") from None
    differing = [
        f"{name} is {about.get(name, 'not given')} and was {header.about.get(name, 'not given')}"
        for name in sorted(about.keys() | header.about.keys())
        if about.get(name) != header.about.get(name)
    ]
    if differing:
        raise ConfigError(f"{path} holds answers to something else: {'; '.join(differing)}; {remedy}")
