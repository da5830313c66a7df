"""Makes a site from a backup, where there is none yet."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import tarfile
import tempfile
from collections.abc import Collection, Sequence
from contextlib import closing, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import IO, BinaryIO

import msgspec
from sqlalchemy import delete, select, update
from sqlalchemy.orm import Session

from trivet import __version__
from trivet.config import Paths, Settings, load_settings
from trivet.errors import ConfigError, Conflict, Unavailable
from trivet_registry.account_tables import LoginSession
from trivet_registry.audit_log import Act, append
from trivet_registry.backups.manifest import FORMAT, HOME, MANIFEST, REGISTRY, BackupManifest
from trivet_registry.backups.registry_copy import load_registry, require_no_registry
from trivet_registry.database import Database, open_database
from trivet_registry.digests import CHUNK_BYTES
from trivet_registry.tables import Version

UNPACKED = "restoring"  # folder of the home, until all of a backup is there and is right


@dataclass(frozen=True, slots=True)
class Restored:
    """A backup that was read, or a site that was made from it."""

    created_at: str
    num_files: int
    missing: Sequence[str] = ()  # versions whose files are not here


def check_backup(file: Path) -> Restored:
    """Read it through, and open a copy of its registry.

    Raises: ConfigError naming what is wrong with it; Unavailable without room for the copy.
    """
    try:
        with tempfile.TemporaryDirectory(prefix="trivet-") as scratch:
            manifest = _read(file, Path(scratch), only=REGISTRY)
            _open_registry(Path(scratch), file, manifest).close()
    except OSError as error:
        raise Unavailable(
            f"the registry of {file} cannot be copied: {error}; set TMPDIR to another disk"
        ) from error
    return Restored(manifest.created_at, len(manifest.files))


def restore(settings: Settings, file: Path, database_url: str | None = None) -> Restored:
    """Put all of a backup into the home; the registry comes last, whole. Hold the home's lock.

    Logins end, and the audit log says what was done. `database_url`: for the registry, else the restored
    settings decide.

    Raises: ConfigError for what is no whole backup; Conflict where something of it is here; Unavailable.
    """
    home = settings.paths.home
    folder = home / UNPACKED
    shutil.rmtree(folder, ignore_errors=True)
    try:
        _refuse_what_is_here(settings.paths)
        folder.mkdir(mode=0o700)
        manifest = _read(file, folder)
        url = database_url or _url_of(folder / HOME, settings)
        require_no_registry(url)
        with closing(_open_registry(folder, file, manifest)) as database:
            with database.session() as session:
                _make_own(session, manifest, home)
            _put_in_place(folder / HOME, home)
            with database.reading() as session:
                missing = [v.reference for v in session.scalars(select(Version)) if not Path(v.path).exists()]
        try:
            load_registry(folder / REGISTRY, url)
        except ConfigError as error:
            raise ConfigError(f"{error}; {home} has all else by now: remove it and restore again") from error
    except OSError as error:
        raise Unavailable(
            f"{home} cannot be written: {error}; remove it, check disk and rights, do it again"
        ) from error
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    return Restored(manifest.created_at, len(manifest.files), missing)


def _open_registry(folder: Path, file: Path, manifest: BackupManifest) -> Database:
    """Unpacked into `folder`; an older release's is upgraded there. Raises: ConfigError."""
    try:
        return open_database(f"sqlite:///{folder / REGISTRY}")
    except ConfigError as error:
        raise ConfigError(
            f"the registry of {file}, made by Trivet {manifest.trivet}, cannot be opened by this one, "
            f"{__version__}: {error}"
        ) from error


def _refuse_what_is_here(paths: Paths) -> None:
    """Empty folders do not count: a serve that was started too early has made them. Raises: Conflict."""
    for top in (*paths.kept, paths.models):
        if top.is_file() or (top.is_dir() and any(top.iterdir())):
            raise Conflict(f"{top} exists; a backup is restored beside nothing: move {paths.home} away first")


def _url_of(unpacked: Path, settings: Settings) -> str:
    """By the settings that were backed up, which the environment beats."""
    restored = load_settings({"home": str(unpacked)})
    return restored.database_url or settings.resolved_database_url


def _make_own(session: Session, manifest: BackupManifest, home: Path) -> None:
    session.execute(delete(LoginSession))
    _move_versions(session, Path(manifest.home), home)
    append(session, Act("the host", "site.restore", f"the backup of {manifest.created_at}"))


def _put_in_place(unpacked: Path, home: Path) -> None:
    for entry in sorted(unpacked.iterdir()) if unpacked.is_dir() else ():
        place = home / entry.name
        if place.is_dir():  # empty; it may be a link to another disk
            for part in entry.iterdir():
                shutil.move(part, place / part.name)
        else:
            shutil.move(entry, place)


def _move_versions(session: Session, old_home: Path, home: Path) -> None:
    """Versions of the store are where the store is now, if the home is another one."""
    if old_home == home:
        return
    for version in session.scalars(select(Version).where(Version.is_stored)).all():
        path = _moved(version.path, old_home, home)
        files = [{**file, "name": _moved(file["name"], old_home, home)} for file in version.files]
        fingerprint = hashlib.sha256(json.dumps([path, files]).encode()).hexdigest()
        values = {"path": path, "files": files, "fingerprint": fingerprint}
        session.execute(update(Version).where(Version.id == version.id).values(**values))


def _moved(path: str, old_home: Path, home: Path) -> str:
    place = Path(path)
    return str(home / place.relative_to(old_home)) if place.is_relative_to(old_home) else path


def _read(file: Path, folder: Path, only: str | None = None) -> BackupManifest:
    """Unpack it into `folder`, or `only` one member of it.

    Raises: ConfigError; OSError of the disk that is written to.
    """
    try:
        tar = tarfile.open(file, "r:")  # noqa: SIM115 (what may fail before it and in it is told differently)
    except (OSError, tarfile.TarError) as error:
        raise ConfigError(
            f"{file} cannot be read as a backup: {error}; give the file of `trivet backup`"
        ) from error
    with tar:
        try:
            manifest, digests = _unpack(tar, folder, only)
        except (tarfile.TarError, msgspec.MsgspecError) as error:
            raise ConfigError(f"{file} is no whole backup: {error}; take another") from error
    if manifest.format != FORMAT:
        raise ConfigError(
            f"{file} was made by Trivet {manifest.trivet} in a format that this one cannot read"
        )
    listed = {kept.name: kept.sha256 for kept in manifest.files}
    wrong = sorted(name for name in {*listed, *digests} if listed.get(name) != digests.get(name))
    if wrong or REGISTRY not in listed:
        what = ", ".join(wrong[:3]) or REGISTRY
        raise ConfigError(f"{file} is damaged: {what} is not what was backed up; take another")
    for kept in manifest.files:
        if only in (None, kept.name):
            os.utime(folder / kept.name, ns=(kept.mtime_ns, kept.mtime_ns))
    return manifest


def _unpack(tar: tarfile.TarFile, folder: Path, only: str | None) -> tuple[BackupManifest, dict[str, str]]:
    """The manifest, and the SHA-256 of each member. Raises: TarError; MsgspecError; ModelFilesError."""
    digests: dict[str, str] = {}
    for member in tar:
        _check_member(member, digests)
        content = tar.extractfile(member)
        assert content is not None  # of what is neither a file nor a link
        if member.name == MANIFEST:
            return msgspec.json.decode(content.read(), type=BackupManifest), digests
        place = folder / member.name if only in (None, member.name) else None
        if place is not None:
            place.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        if not member.islnk():
            digests[member.name] = _copy(content, place, member.mode)
            continue
        digests[member.name] = digests[member.linkname]
        if place is not None:
            place.hardlink_to(folder / member.linkname)
    raise tarfile.ReadError("its end is missing")


def _check_member(member: tarfile.TarInfo, known: Collection[str]) -> None:
    """Raises: TarError for what no backup has."""
    name = member.name
    is_ours = name in (MANIFEST, REGISTRY) or (name.startswith(HOME) and ".." not in name.split("/"))
    if not is_ours or name in known or not (member.isreg() or (member.islnk() and member.linkname in known)):
        raise tarfile.ReadError(f"{name[:200]!r} of type {member.type!r} is no part of a backup")


def _copy(content: IO[bytes], place: Path | None, mode: int) -> str:
    """Returns the SHA-256. `place` None: it is read only."""
    digest = hashlib.sha256()
    with nullcontext() if place is None else _new_file(place) as out:
        while chunk := content.read(CHUNK_BYTES):
            digest.update(chunk)
            if out is not None:
                out.write(chunk)
        if out is not None:
            out.flush()
            os.fsync(out.fileno())
            os.fchmod(out.fileno(), mode & 0o777)
    return digest.hexdigest()


def _new_file(place: Path) -> BinaryIO:
    return open(os.open(place, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb")
