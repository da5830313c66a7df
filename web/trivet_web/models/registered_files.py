"""Opens files of versions for whoever reads them over the network: as they were registered, or not at all.

Whoever owns a folder of models may put links into it later, to files that only this process may read.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path, PurePosixPath

from trivet.config import Settings
from trivet.errors import Conflict, NotFound
from trivet_registry.models_store import version_files
from trivet_registry.tables import Version
from trivet_web.models.servable import check_roots

_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
_FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC  # a pipe opens without a writer


@contextmanager
def opened(version: Version, name: str, settings: Settings) -> Iterator[int]:
    """A descriptor of one file, by its name in the model's folder. No link below that folder is followed.

    Raises: NotFound; Conflict where it is not as it was registered; PermissionDenied where the folder now
        leads out of `model_roots`.
    """
    files = version_files(version)
    if name not in files:
        raise NotFound(
            f"{version.reference} has no file {name[:200]!r}; it has: {', '.join(files)}", param="name"
        )
    place = Path(files[name]["name"])
    folder = place.parents[name.count("/")]
    try:
        handle = _open_below(folder, name)
    except FileNotFoundError:
        raise NotFound(f"{place} is missing; put it back, or register the model anew", param="name") from None
    except OSError as error:
        if error.errno in (errno.ELOOP, errno.ENOTDIR):
            raise Conflict(
                f"{place} is or lies behind a link, which is not followed to send a file; register the model "
                "with --copy",
                param="name",
            ) from None
        raise Conflict(f"{place} cannot be read: {error.strerror}; check the rights", param="name") from error
    try:
        _check_unchanged(handle, place, files[name], has_time=not version.is_stored)
        if not version.is_stored:  # the store is the site's own
            check_roots(Path(os.readlink(f"/proc/self/fd/{handle}")), "name", settings)
        yield handle
    finally:
        os.close(handle)


def _open_below(folder: Path, name: str) -> int:
    *folders, last = PurePosixPath(name).parts
    within = os.open(folder, _FOLDER)
    try:
        for part in folders:
            inner = os.open(part, _FOLDER | os.O_NOFOLLOW, dir_fd=within)
            os.close(within)
            within = inner
        return os.open(last, _FILE, dir_fd=within)
    finally:
        os.close(within)


def _check_unchanged(handle: int, place: Path, registered: Mapping[str, object], *, has_time: bool) -> None:
    """In the store a repaired file has another time."""
    status = os.fstat(handle)
    is_same = stat.S_ISREG(status.st_mode) and status.st_size == registered["size_bytes"]
    if not is_same or (has_time and status.st_mtime_ns != registered["mtime_ns"]):
        raise Conflict(
            f"{place} has changed since it was registered; register it anew, which makes another version",
            param="name",
        )
