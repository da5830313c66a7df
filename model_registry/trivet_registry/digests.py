"""SHA-256 of model files, and of all files of a model together."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from trivet.errors import ModelFilesError

if TYPE_CHECKING:
    from trivet.models.description import ModelFiles

CHUNK_BYTES = 1 << 22
Progress = Callable[[int], None]  # called with how many bytes more; it may raise to end the work


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
    """Hexadecimal. Raises: ModelFilesError where it cannot be read."""
    digest = hashlib.sha256()
    buffer = bytearray(CHUNK_BYTES)
    view = memoryview(buffer)
    try:
        with path.open("rb", buffering=0) as file:
            while count := file.readinto(buffer):
                digest.update(view[:count])
                progress(count)
    except OSError as error:
        raise ModelFilesError(
            f"{path} cannot be read: {error.strerror}; check the disk and rights"
        ) from error
    return digest.hexdigest()


def content_digest(digests: Mapping[str, str]) -> str:
    """One for all: of lines as `sha256sum` prints them, by name. Equal where all files are."""
    lines = "".join(f"{digest}  {name}\n" for name, digest in sorted(digests.items()))
    return hashlib.sha256(lines.encode()).hexdigest()
