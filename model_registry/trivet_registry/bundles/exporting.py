"""Writes a bundle of one version."""

from __future__ import annotations

import fcntl
import glob
import hashlib
import io
import os
import secrets
import tarfile
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import BinaryIO

import msgspec
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from trivet.errors import Conflict, ModelFilesError, Unavailable
from trivet_registry.bundles.manifest import BLOBS, FORMAT, MANIFEST, SIGNATURE, BundledFile, Manifest
from trivet_registry.bundles.signing import fingerprint
from trivet_registry.database import Database
from trivet_registry.model_store.keeping import verify_version
from trivet_registry.model_store.opening import CheckPlace, anywhere, open_in_place
from trivet_registry.models_store import version_files
from trivet_registry.references import find_version
from trivet_registry.tables import utc_now

_PARTIAL = ".{}.{}.partial"  # of the bundle's name, and its own


@dataclass(frozen=True, slots=True)
class Bundle:
    """A bundle that was made."""

    path: Path
    version: str
    key: str
    size_bytes: int
    num_files: int  # in the bundle; the model may have more, which the other site has


def export_version(
    database: Database,
    reference: str,
    path: Path,
    key: Ed25519PrivateKey,
    have: Collection[str] = (),
    check: CheckPlace = anywhere,
) -> Bundle:
    """Write it to `path`, which must not exist; it appears there when it is whole.

    All files are read through first: what has changed since it was registered is not passed on.

    Args: have: SHA-256 of files that the other site has, which are left out; check: see `open_in_place`.

    Raises: ModelNotFound; ModelFilesError naming a file that is not as it was; Conflict; Unavailable.
    """
    if wrong := verify_version(database, reference):
        raise ModelFilesError(f"{reference} is not exported: {'; '.join(wrong.values())}")
    if path.exists():
        raise Conflict(f"{path} exists; remove it, or give another name", param="path")
    with database.reading() as session:
        version = find_version(session, reference)
        digests = version.digests or {}
        files = {name: file for name, file in version_files(version).items() if name in digests}
        place = Path(version.path)
        opens = partial(open_in_place, folder=place if place.is_dir() else place.parent, check=check)
    listed = [
        BundledFile(name, file["size_bytes"], digests[name], digests[name] not in have)
        for name, file in sorted(files.items())
    ]
    manifest = msgspec.json.encode(
        Manifest(
            format=FORMAT,
            model=version.name,
            version=version.version,
            source=version.source,
            licence=version.licence,
            created_at=utc_now().isoformat(timespec="seconds"),
            files=listed,
        )
    )
    included = {file.sha256: Path(files[file.name]["name"]) for file in listed if file.is_included}
    try:
        with _partial_of(path) as file:
            _write(file, manifest, key.sign(manifest), included, opens)
            _put_in_place(Path(file.name), path)
    except OSError as error:
        raise Unavailable(f"{path} cannot be written: {error.strerror}; check disk and rights") from error
    return Bundle(path, version.reference, fingerprint(key.public_key()), path.stat().st_size, len(included))


@contextmanager
def _partial_of(path: Path) -> Iterator[BinaryIO]:
    """A file beside it, of a name of its own: others may write to the same path now. It goes at the end."""
    _remove_abandoned(path)
    temporary = path.with_name(_PARTIAL.format(path.name, secrets.token_hex(8)))
    with temporary.open("xb") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        try:
            yield file
        finally:
            temporary.unlink(missing_ok=True)


def _remove_abandoned(path: Path) -> None:
    """What exports to this path wrote that were killed: their locks ended with them."""
    for partial_file in path.parent.glob(_PARTIAL.format(glob.escape(path.name), "*")):
        with partial_file.open("rb") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                continue
            partial_file.unlink(missing_ok=True)


class _HashingReader:
    """What is written is what is hashed, whatever became of the file since it was verified."""

    def __init__(self, file: BinaryIO) -> None:
        self.digest = hashlib.sha256()
        self._file = file

    def read(self, size: int = -1, /) -> bytes:
        """As of a file."""
        data = self._file.read(size)
        self.digest.update(data)
        return data


def _put_in_place(temporary: Path, path: Path) -> None:
    """Raises: Conflict where another was faster; on a disk without hard links the later one stays."""
    try:
        path.hardlink_to(temporary)
    except FileExistsError:
        raise Conflict(f"{path} exists by now; remove it, or give another name", param="path") from None
    except OSError:
        temporary.replace(path)


def _write(
    file: BinaryIO,
    manifest: bytes,
    signature: bytes,
    blobs: dict[str, Path],
    opens: Callable[[Path], BinaryIO],
) -> None:
    # GNU's headers have room for sizes over 8 GiB; PAX needs a second header, which imports refuse.
    with tarfile.open(fileobj=file, mode="w", format=tarfile.GNU_FORMAT) as tar:
        for name, data in ((MANIFEST, manifest), (SIGNATURE, signature)):
            member = tarfile.TarInfo(name)
            member.size = len(data)
            tar.addfile(member, io.BytesIO(data))
        for sha256, blob in blobs.items():
            member = tarfile.TarInfo(BLOBS + sha256)
            with opens(blob) as content:
                member.size = os.fstat(content.fileno()).st_size
                reader = _HashingReader(content)
                tar.addfile(member, reader)
            if reader.digest.hexdigest() != sha256:
                raise ModelFilesError(f"{blob} changed while it was exported; nothing was written")
    file.flush()
    os.fsync(file.fileno())
