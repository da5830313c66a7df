"""A folder for this user's processes alone, below the host's temporary one."""

from __future__ import annotations

import os
import stat
import tempfile
from pathlib import Path


def private_folder(name: str, parent: Path | None = None) -> Path:
    """Make `name`-UID, closed to others, or find it; in the temporary folder unless `parent` is given.

    Raises: OSError where it cannot be made, or where somebody else made it: its files are not ours then.
    """
    folder = (parent or Path(tempfile.gettempdir())) / f"{name}-{os.getuid()}"
    folder.mkdir(mode=0o700, exist_ok=True)
    status = folder.lstat()
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.getuid() or status.st_mode & 0o077:
        raise PermissionError(f"{folder} is not a folder of this user alone; remove it")
    return folder
