"""What users asked to be kept: responses, files, batches. One file an object, in the home, for a while.

A file is written beside its place and renamed: readers, also those of other processes, see it whole or not
at all. What is older than the retention is gone, whether or not it has been removed yet.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
import secrets
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Generic, TypeVar

import msgspec

from trivet.errors import TrivetError

T = TypeVar("T", bound=msgspec.Struct)
_ID = re.compile(r"[a-z]+_[0-9a-f]{24,64}")
SWEEP_S = 600.0
DAY_S = 86_400.0
RESERVE_BYTES = 256 << 20  # of the disk: a registry that cannot write stops the whole site


class StorageFull(TrivetError):
    """What is complete cannot be kept; to make it anew would not help."""

    status, code = 503, "storage_full"


def check_room(folder: Path, size_bytes: int = 0) -> None:
    """For what users add. Raises: OSError where it would take the room that the registry needs."""
    if shutil.disk_usage(folder).free < RESERVE_BYTES + size_bytes:
        raise OSError(errno.ENOSPC, f"less than {RESERVE_BYTES >> 20} MiB of the disk would be left")


def sync(place: Path) -> None:
    """Bring a file's content, or a folder's names, to the disk. Raises: OSError."""
    descriptor = os.open(place, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def new_id(prefix: str) -> str:
    """An id that nobody can guess."""
    return f"{prefix}_{secrets.token_hex(16)}"


class StoredObjects(Generic[T]):
    """Objects of one kind by id. Thread-safe; several processes may share the folder."""

    def __init__(
        self,
        folder: Path,
        kind: type[T],
        retention_days: float,
        clock: Callable[[], float] = time.time,
        *,
        is_synced: bool = False,
    ) -> None:
        """Args: is_synced: what `put` has returned from outlasts a power failure, for some milliseconds."""
        self._folder = folder
        self._is_synced = is_synced
        self._decoder = msgspec.json.Decoder(kind)
        self._retention_s = retention_days * DAY_S
        self._clock = clock
        self._swept_s = -SWEEP_S

    def put(self, object_id: str, value: T, *, leaves_room: bool = False) -> None:
        """New, or in place of what was there; its age does not change then.

        Args: leaves_room: refuse what takes the last of the disk.

        Raises: OSError.
        """
        self._sweep()
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        if leaves_room:
            check_room(self._folder)
        place = self._place(object_id)
        draft = place.with_suffix(f".{secrets.token_hex(4)}")
        try:
            draft.touch(mode=0o600)
            draft.write_bytes(msgspec.json.encode(value))
            if self._is_synced:
                sync(draft)
            with contextlib.suppress(FileNotFoundError):
                born_s = place.stat().st_mtime
                os.utime(draft, (born_s, born_s))
            draft.replace(place)
            if self._is_synced:
                sync(self._folder)
        except OSError:
            draft.unlink(missing_ok=True)
            raise

    def get(self, object_id: str) -> T | None:
        if not _ID.fullmatch(object_id):
            return None
        place = self._place(object_id)
        try:
            if self._is_old(place):
                return None
            return self._decoder.decode(place.read_bytes())
        except (FileNotFoundError, msgspec.MsgspecError):
            return None

    def remove(self, object_id: str) -> bool:
        """Whether it was there."""
        if self.get(object_id) is None:
            return False
        self._place(object_id).unlink(missing_ok=True)
        return True

    def ids(self) -> list[str]:
        """Newest first."""
        found = []
        for place in self._folder.glob("*.json"):
            with contextlib.suppress(FileNotFoundError):
                if not self._is_old(place):
                    found.append((place.stat().st_mtime, place.stem))
        return [object_id for _, object_id in sorted(found, reverse=True)]

    def _place(self, object_id: str) -> Path:
        return self._folder / f"{object_id}.json"

    def _is_old(self, place: Path) -> bool:
        return self._clock() - place.stat().st_mtime > self._retention_s

    def _sweep(self) -> None:
        """Now and then."""
        if self._clock() - self._swept_s >= SWEEP_S:
            self._swept_s = self._clock()
            self._sweep_now()

    def _sweep_now(self) -> None:
        """Remove what is too old."""
        for place in self._folder.glob("*"):
            with contextlib.suppress(FileNotFoundError):
                if self._is_old(place):
                    place.unlink()
