"""Reads the tar of a bundle: plain files only, nothing in memory but one header of 512 bytes.

`tarfile` itself would read a stranger's extended headers into memory, whatever their size, and fill the holes
of sparse files: both before anybody could look at the manifest's signature.
"""

from __future__ import annotations

import os
import tarfile
from collections.abc import Iterator
from typing import BinaryIO

from trivet.errors import ModelFilesError
from trivet_registry.digests import CHUNK_BYTES

_BLOCK = tarfile.BLOCKSIZE
_PLAIN = (tarfile.REGTYPE, tarfile.AREGTYPE)


class Archive:
    """Members one after the other. `name` is for messages."""

    def __init__(self, file: BinaryIO, name: str) -> None:
        self.name = name
        self._file = file
        self._size = os.fstat(file.fileno()).st_size
        self._next = 0  # offset of the next header

    def next(self) -> tarfile.TarInfo | None:
        """None at the end. Raises: TarError; ModelFilesError for what is no plain file, or is cut off."""
        self._file.seek(self._next)
        header = self._file.read(_BLOCK)
        if header.count(0) == len(header):  # two empty blocks, or nothing, are the end
            return None
        member = tarfile.TarInfo.frombuf(header, "utf-8", "strict")
        if member.type not in _PLAIN:
            raise ModelFilesError(
                f"{self.name} holds an entry of type {member.type!r}, and a bundle has plain files only; "
                "export it again with this release"
            )
        begin = self._next + _BLOCK
        if member.size < 0 or begin + member.size > self._size:
            raise ModelFilesError(
                f"{self.name} is no whole bundle: {member.name[:200]} is cut off; copy it again"
            )
        self._next = begin + -(-member.size // _BLOCK) * _BLOCK
        return member

    def content(self, member: tarfile.TarInfo, chunk_bytes: int = CHUNK_BYTES) -> Iterator[bytes]:
        """Of the member that was returned last. Raises: EOFError where the file has become shorter."""
        missing = member.size
        while missing:
            chunk = self._file.read(min(missing, chunk_bytes))
            if not chunk:
                raise EOFError(f"{member.name[:200]} ends early")
            missing -= len(chunk)
            yield chunk
