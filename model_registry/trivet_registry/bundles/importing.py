"""Takes a bundle in: signature, then age, then each file, then one token, then the registry."""

from __future__ import annotations

import hashlib
import secrets
import tarfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from trivet.errors import ModelFilesError
from trivet_registry.bundles.archive import Archive
from trivet_registry.bundles.manifest import (
    BLOBS,
    FORMAT,
    MANIFEST,
    MAX_MANIFEST_BYTES,
    MAX_SIGNATURE_BYTES,
    SIGNATURE,
    BundledFile,
    Manifest,
)
from trivet_registry.bundles.newest import refuse_older, remember
from trivet_registry.bundles.signing import check_signature, trusted_keys
from trivet_registry.database import Database
from trivet_registry.digests import Progress, sha256_of
from trivet_registry.model_store.keeping import open_stored, register_stored
from trivet_registry.model_store.store import ModelStore, check_names
from trivet_registry.models_store import Signature
from trivet_registry.references import check_name

if TYPE_CHECKING:
    from trivet_registry.model_store.keeping import Opens


@dataclass(frozen=True, slots=True)
class Import:
    """What to take in, and how."""

    path: Path
    keys: Path  # the site's folder of keys
    name: str | None = None  # to register it under; None: as the bundle says
    key: str | None = None  # PEM of a key that is trusted for this time
    allows_older: bool = False
    is_tested: bool = True  # it must answer one token before it is registered

    @property
    def source(self) -> str:
        return f"bundle:{self.path}"


def import_bundle(
    wanted: Import,
    store: ModelStore,
    database: Database,
    opens: Opens,
    smoke_test: Callable[[Path], None],
    progress: Progress,
    expect: Callable[[int], None],
) -> str:
    """Returns the reference of the version. Nothing is registered where anything is wrong.

    Args: smoke_test: loads the model and has it answer one token; it raises where it does not.

    Raises: PermissionDenied for a wrong signature; Conflict for an older version; ModelFilesError naming the
        file that is missing or changed.
    """
    try:
        with wanted.path.open("rb") as file, store.adding():
            tar = Archive(file, str(wanted.path))
            manifest, signed_by = _manifest(tar, wanted)
            name = check_name(wanted.name or manifest.model, "model")
            with database.reading() as session:
                refuse_older(session, manifest, signed_by, allows_older=wanted.allows_older)
            expect(sum(file.size_bytes for file in manifest.files if file.is_included))
            _take_files(tar, manifest, store, progress)
            files = open_stored(store, manifest.digests, opens)
            smoke_test(files.path)
            progress(0)  # the last moment to cancel
            with database.session() as session:  # another may have been taken in meanwhile
                refuse_older(session, manifest, signed_by, allows_older=wanted.allows_older)
                remember(session, manifest, signed_by)
                signature = Signature(signed_by, manifest.version)
                source = f"bundle:{manifest.source}"
                return register_stored(session, files, manifest.digests, name, source, signature).reference
    except (tarfile.TarError, EOFError) as error:
        raise ModelFilesError(f"{wanted.path} is no whole bundle: {error}; copy it again") from error
    except OSError as error:
        raise ModelFilesError(f"{wanted.path} cannot be read: {error.strerror or error}") from error


def _manifest(tar: Archive, wanted: Import) -> tuple[Manifest, str]:
    """And the fingerprint of the key that signed it."""
    data = _small(tar, MANIFEST, MAX_MANIFEST_BYTES)
    signature = _small(tar, SIGNATURE, MAX_SIGNATURE_BYTES)
    signed_by = check_signature(data, signature, trusted_keys(wanted.keys, wanted.key), wanted.keys)
    try:
        manifest = msgspec.json.decode(data, type=Manifest)
    except msgspec.MsgspecError as error:
        raise ModelFilesError(f"{wanted.path}: the manifest is of another release: {error}") from error
    if manifest.format != FORMAT:
        raise ModelFilesError(
            f"{wanted.path} is of format {manifest.format[:80]!r}, and this release reads {FORMAT!r}"
        )
    check_names([file.name for file in manifest.files])
    return manifest, signed_by


def _small(tar: Archive, name: str, max_bytes: int) -> bytes:
    member = tar.next()
    if member is None or member.name != name or member.size > max_bytes:
        raise ModelFilesError(f"{tar.name} has no {name} where a bundle has it; it is no bundle of Trivet")
    return b"".join(tar.content(member))


def _take_files(tar: Archive, manifest: Manifest, store: ModelStore, progress: Progress) -> None:
    missing = {f.sha256: f for f in manifest.files if f.is_included}
    store.require_room(sum(f.size_bytes for f in missing.values() if not store.has(f.sha256)))
    while (member := tar.next()) is not None:
        sha256 = member.name.removeprefix(BLOBS)
        if sha256 not in missing:
            raise ModelFilesError(f"{tar.name} holds {member.name[:200]!r}, which its manifest does not name")
        _take(tar, member, missing.pop(sha256), store, progress)
    for file in missing.values():
        raise ModelFilesError(f"{file.name} is missing in {tar.name}; copy it again, or export it again")
    for file in manifest.files:
        if not store.has(file.sha256):
            raise ModelFilesError(
                f"{file.name} is neither in {tar.name} nor in the store here; the bundle was made with a "
                "list of what another site has (--have): export it without"
            )


def _take(
    tar: Archive, member: tarfile.TarInfo, file: BundledFile, store: ModelStore, progress: Progress
) -> None:
    if member.size != file.size_bytes:
        raise ModelFilesError(
            f"{file.name} in {tar.name} has {member.size} bytes and the signed manifest says "
            f"{file.size_bytes}; it was changed or damaged on the way: do not use it"
        )
    if store.has(file.sha256) and sha256_of(store.blob(file.sha256)) == file.sha256:
        _read(tar, member, file, progress)  # what is here already needs no room
        return
    temporary = store.partial / f"bundle-{secrets.token_hex(8)}"  # others may take in the same file now
    try:
        with temporary.open("xb") as writing:
            _read(tar, member, file, progress, writing.write)
        store.take(temporary, file.sha256)
    finally:
        temporary.unlink(missing_ok=True)


def _read(
    tar: Archive,
    member: tarfile.TarInfo,
    file: BundledFile,
    progress: Progress,
    write: Callable[[bytes], object] = lambda chunk: None,
) -> None:
    """Raises: ModelFilesError where it is not what was signed."""
    digest = hashlib.sha256()
    for chunk in tar.content(member):
        digest.update(chunk)
        write(chunk)
        progress(len(chunk))
    if digest.hexdigest() != file.sha256:
        raise ModelFilesError(
            f"{file.name} in {tar.name} has SHA-256 {digest.hexdigest()} and the signed manifest says "
            f"{file.sha256}; it was changed or damaged on the way: do not use it"
        )
