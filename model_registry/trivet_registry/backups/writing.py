"""Writes a backup, also while the site serves."""

from __future__ import annotations

import hashlib
import io
import os
import secrets
import stat
import tarfile
import tempfile
from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import msgspec

from trivet import __version__
from trivet.config import Settings
from trivet.errors import Conflict, Unavailable
from trivet_registry.backups.manifest import FORMAT, HOME, MANIFEST, REGISTRY, BackupManifest, KeptFile
from trivet_registry.backups.registry_copy import require_registry, save_registry
from trivet_registry.digests import CHUNK_BYTES
from trivet_registry.model_store.store import ModelStore
from trivet_registry.tables import utc_now

NAME_FORMAT = "trivet-%Y%m%dT%H%M%SZ.tar"
NAME_PATTERN = "trivet-????????T??????Z.tar"
NOT_KEPT = ("partial", "lock")  # of the store: what is under way, and who is at it


@dataclass(frozen=True, slots=True)
class Backup:
    """A backup that was made."""

    path: Path
    size_bytes: int
    num_files: int


def write_backup(settings: Settings, place: Path, *, with_models: bool = True) -> Backup:
    """Write it to `place`, a new file, or a folder, in which it is named after the time.

    It appears when it is whole, readable by this account only: whoever has it can make this site's bundles.

    Raises: Conflict where the file exists; ConfigError without a registry; Unavailable for a full disk.
    """
    now = utc_now()
    file = place / now.strftime(NAME_FORMAT) if place.is_dir() else place
    if file.exists():
        raise Conflict(f"{file} exists; remove it, or give another name")
    require_registry(
        settings.resolved_database_url
    )  # else the store's folders would be made in a strange home
    temporary = file.with_name(f".{secrets.token_hex(8)}.partial")
    try:
        with (
            ModelStore(settings.paths.models).adding() if with_models else nullcontext(),
            open(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as out,
            tarfile.TarFile(fileobj=out, mode="w", copybufsize=CHUNK_BYTES) as tar,
        ):
            files = _Writer(tar).write_all(settings, file.parent, with_models)
            manifest = BackupManifest(
                format=FORMAT,
                trivet=__version__,
                created_at=now.isoformat(timespec="seconds"),
                home=str(settings.paths.home),
                has_models=with_models,
                files=files,
            )
            _add_bytes(tar, MANIFEST, msgspec.json.format(msgspec.json.encode(manifest), indent=1))
            tar.close()
            out.flush()
            os.fsync(out.fileno())
        temporary.replace(file)
    except OSError as error:
        raise Unavailable(f"{file} cannot be written: {error}; check disk and rights") from error
    finally:
        temporary.unlink(missing_ok=True)
    return Backup(file, file.stat().st_size, len(files))


def remove_oldest(folder: Path, num_kept: int) -> list[Path]:
    """Of the backups in a folder that are named after their time. Returns what is gone."""
    gone = sorted(folder.glob(NAME_PATTERN))[:-num_kept]
    for file in gone:
        file.unlink()
    return gone


class _Writer:
    """Adds members, and remembers them."""

    def __init__(self, tar: tarfile.TarFile) -> None:
        self._tar = tar
        self._files: list[KeptFile] = []
        self._names_of_links: dict[tuple[int, int], KeptFile] = {}

    def write_all(self, settings: Settings, scratch: Path, with_models: bool) -> list[KeptFile]:
        paths = settings.paths
        with tempfile.TemporaryDirectory(prefix=".", dir=scratch) as folder:
            registry = Path(folder) / REGISTRY
            save_registry(settings.resolved_database_url, registry)
            self.add(REGISTRY, registry)
        for top in (*paths.kept, *((paths.models,) if with_models else ())):
            for file in _files_of(top):
                if top == paths.models and file.relative_to(top).parts[0] in NOT_KEPT:
                    continue
                self.add(HOME + file.relative_to(paths.home).as_posix(), file)
        return self._files

    def add(self, name: str, path: Path) -> None:
        """Nothing where it is gone by now: what is stored may be removed at any time."""
        try:
            handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        except FileNotFoundError:
            return
        with open(handle, "rb", buffering=0) as file:
            status = os.fstat(handle)
            if not stat.S_ISREG(status.st_mode):
                return
            member = tarfile.TarInfo(name)
            member.mode, member.mtime = stat.S_IMODE(status.st_mode), int(status.st_mtime)
            first = self._names_of_links.get((status.st_dev, status.st_ino))
            if first is not None:
                member.type, member.linkname = tarfile.LNKTYPE, first.name
                self._tar.addfile(member)
                self._files.append(msgspec.structs.replace(first, name=name, same_as=first.name))
                return
            member.size = status.st_size  # of a journal: what is appended meanwhile is not in it
            reader = _HashingReader(file, path)
            self._tar.addfile(member, reader)
        kept = KeptFile(
            name=name,
            size_bytes=status.st_size,
            sha256=reader.digest.hexdigest(),
            mode=member.mode,
            mtime_ns=status.st_mtime_ns,
        )
        self._files.append(kept)
        if status.st_nlink > 1:
            self._names_of_links[status.st_dev, status.st_ino] = kept


class _HashingReader(io.RawIOBase):
    """What is written is what is hashed."""

    def __init__(self, file: BinaryIO, path: Path) -> None:
        self.digest = hashlib.sha256()
        self._file = file
        self._path = path

    def read(self, size: int = -1, /) -> bytes:
        """Exactly so many bytes. Raises: Unavailable where the file has become shorter."""
        parts = []
        while size > 0 and (data := self._file.read(size)):
            self.digest.update(data)
            parts.append(data)
            size -= len(data)
        if size > 0:
            raise Unavailable(f"{self._path} became shorter while it was read; back up again")
        return b"".join(parts)


def _files_of(top: Path) -> Iterator[Path]:
    """A file itself; of a folder all below it, in order. `top` may be a link, as to a larger disk."""
    if not top.is_dir():
        yield top
        return
    for place, folders, names in os.walk(top):
        folders.sort()
        yield from (Path(place, name) for name in sorted(names))


def _add_bytes(tar: tarfile.TarFile, name: str, data: bytes) -> None:
    member = tarfile.TarInfo(name)
    member.size, member.mode = len(data), 0o600
    tar.addfile(member, io.BytesIO(data))
