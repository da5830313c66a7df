"""Opens files of registered models for whoever passes their bytes on: into the store, into a bundle.

A model's folder may belong to somebody else, who may put links into it, also while it is read, to files that
only this process may read. Links are needed all the same (caches of Hugging Face's tools consist of them):
one is followed as a careful web server does, to a file of whoever owns the folder.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO

from trivet.errors import ModelFilesError

CheckPlace = Callable[[Path], None]  # raises where the site's rules forbid a file


def anywhere(place: Path) -> None:
    """For callers without rules."""


def open_in_place(path: Path, folder: Path, check: CheckPlace = anywhere) -> BinaryIO:
    """Args: folder: of the model, in which the file's name is; check: is given where the file really is.

    Raises: ModelFilesError; FileNotFoundError.
    """
    handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)  # a pipe opens without a writer
    try:
        status = os.fstat(handle)
        real = Path(os.readlink(f"/proc/self/fd/{handle}"))
        if not stat.S_ISREG(status.st_mode):
            raise ModelFilesError(f"{path} is no plain file; put one in its place")
        is_link = real != folder.resolve() / path.relative_to(folder)
        if is_link and status.st_uid != folder.stat().st_uid:
            raise ModelFilesError(
                f"{path} leads to {real}, which belongs to somebody else than {folder}; put the file itself "
                "there"
            )
        check(real)
        return os.fdopen(handle, "rb")
    except BaseException:
        os.close(handle)
        raise
