"""A file that is being received: under its name only when it is whole and on the disk."""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from io import FileIO
from pathlib import Path


class Draft:
    """Beside its place, with another name."""

    def __init__(self, place: Path) -> None:
        self._place = place
        self._file: FileIO | None = None
        self._draft = place.with_name(f".{place.name}.{secrets.token_hex(4)}")

    def write(self, data: bytes) -> None:
        """Raises: OSError."""
        if self._file is None:
            self._file = self._draft.open("xb", buffering=0)  # so that closing it writes nothing more
        rest = memoryview(data)
        while rest:
            rest = rest[self._file.write(rest) :]

    def keep(self) -> int:
        """Give it its name. Returns: its size in bytes. Raises: OSError."""
        self.write(b"")  # an empty one is a file, too
        assert self._file is not None
        with self._file as file:
            os.fsync(file.fileno())
            size_bytes = file.tell()
        self._draft.replace(self._place)
        folder = os.open(self._place.parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)
        return size_bytes

    @contextmanager
    def dropped_on_error(self) -> Iterator[None]:
        """Nothing is left of it where the block raises."""
        try:
            yield
        except BaseException:
            if self._file is not None:
                self._draft.unlink(missing_ok=True)
                self._file.close()
            raise
