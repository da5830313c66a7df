"""SHA-256 of model files, and of all files of a model together."""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import IO, TYPE_CHECKING, Annotated

import msgspec

from trivet.errors import ModelFilesError

if TYPE_CHECKING:
    from trivet.models.description import ModelFiles

CHUNK_BYTES = 1 << 22
_SHA256 = r"\A[0-9a-f]{64}\Z"
Size = Annotated[int, msgspec.Meta(ge=0)]  # bytes
Sha256 = Annotated[str, msgspec.Meta(pattern=_SHA256)]  # of what strangers say: it becomes a path
Progress = Callable[[int], None]  # called with how many bytes more; it may raise to end the work


def is_sha256(text: str) -> bool:
    """Whether it is one, as we write them; what others call one may be a path."""
    return re.search(_SHA256, text) is not None


def ignore_progress(count: int) -> None:
    """For whoever does not look."""


def names_of(files: ModelFiles) -> dict[str, Path]:
    """The files by their names in the model's folder, with slashes."""
    folder = files.path if files.path.is_dir() else files.path.parent
    return {file.relative_to(folder).as_posix(): file for file in files.files}


def digests_of(files: ModelFiles, progress: Progress = ignore_progress) -> dict[str, str]:
    """Reads every byte. Raises: ModelFilesError naming the file."""
    return {name: sha256_of(path, progress) for name, path in sorted(names_of(files).items())}


def sha256_of(path: Path, progress: Progress = ignore_progress) -> str:
    """Hexadecimal. Raises: ModelFilesError where it cannot be read, or changes meanwhile."""
    digest = hashlib.sha256()
    buffer = bytearray(CHUNK_BYTES)
    view = memoryview(buffer)
    try:
        with path.open("rb", buffering=0) as file, unchanged(file, path):
            while count := file.readinto(buffer):
                digest.update(view[:count])
                progress(count)
    except OSError as error:
        raise ModelFilesError(
            f"{path} cannot be read: {error.strerror}; check the disk and rights"
        ) from error
    return digest.hexdigest()


@contextmanager
def unchanged(file: IO[bytes], path: Path) -> Iterator[None]:
    """Around reading a whole file. Raises: ModelFilesError where it was written to meanwhile."""
    before = os.fstat(file.fileno())
    yield
    after = os.fstat(file.fileno())
    if (before.st_size, before.st_mtime_ns) != (after.st_size, after.st_mtime_ns):
        raise ModelFilesError(f"{path} changed while it was read; do it again when it is complete")


def content_digest(digests: Mapping[str, str]) -> str:
    """One for all: of lines as `sha256sum` prints them, by name. Equal where all files are."""
    lines = "".join(f"{digest}  {name}\n" for name, digest in sorted(digests.items()))
    return hashlib.sha256(lines.encode()).hexdigest()
