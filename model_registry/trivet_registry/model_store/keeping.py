"""The store and the registry together: files become a version, versions are checked, leftovers collected."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sqlalchemy import select
from sqlalchemy.orm import Session

from trivet.errors import Conflict
from trivet_registry.database import Database
from trivet_registry.digests import Progress, ignore_progress, names_of, sha256_of
from trivet_registry.model_store.opening import CheckPlace, anywhere
from trivet_registry.model_store.store import ModelStore, Stored, differences
from trivet_registry.models_store import Signature, register_model, remember_digests, version_files
from trivet_registry.references import find_version
from trivet_registry.tables import Version

if TYPE_CHECKING:
    from collections.abc import Callable

    from trivet.models.description import ModelFiles

    Opens = Callable[[Path], ModelFiles]


def copy_into(
    store: ModelStore,
    files: ModelFiles,
    progress: Progress = ignore_progress,
    check: CheckPlace = anywhere,
) -> dict[str, str]:
    """Copy a model's files into the store, with `adding` held. Returns their SHA-256 by name.

    Args: check: see `open_in_place`.
    """
    store.require_room(files.size_bytes)
    folder = files.path if files.path.is_dir() else files.path.parent
    return {
        name: store.add_file(path, progress, folder, check) for name, path in sorted(names_of(files).items())
    }


def open_stored(store: ModelStore, digests: Mapping[str, str], opens: Opens) -> ModelFiles:
    """The model of files that are in the store. Raises: ModelFilesError where they are none."""
    tree = store.build_tree(digests)
    pieces = sorted(name for name in digests if name.endswith(".gguf"))
    has_folder = any(name.endswith(".safetensors") for name in digests)
    return opens(tree if has_folder or not pieces else tree / pieces[0])


def register_stored(
    session: Session,
    files: ModelFiles,
    digests: Mapping[str, str],
    name: str,
    source: str,
    signature: Signature | None = None,
) -> Version:
    """A version of files in the store; one of the same content under this name stays as it is."""
    own = {key: digests[key] for key in names_of(files)}
    return register_model(session, files, name, source, digests=own, is_stored=True, signature=signature)


def verify_version(database: Database, reference: str, store: ModelStore | None = None) -> dict[str, str]:
    """What is wrong with each file, by name; nothing where all is as it was registered.

    Of files that had not been read through, the SHA-256 is remembered now, if size and time are the same.

    Args: store: where a damaged file in it shall count as missing, so that adding it again repairs it.

    Raises: ModelNotFound.
    """
    with database.reading() as session:
        version = find_version(session, reference)
        version_id, digests, files = version.id, version.digests, version_files(version)
    paths = {name: Path(file["name"]) for name, file in files.items()}
    if digests is not None:
        wrong = differences(paths, digests)
        if store is not None and version.is_stored and wrong:
            with store.adding():
                store.set_damaged_aside(digests[name] for name in wrong if name in digests)
        return wrong
    if wrong := _changes(files):
        return wrong
    found = {name: sha256_of(path) for name, path in paths.items()}
    if wrong := _changes(files):  # while they were read
        return wrong
    with database.session() as session:
        if (row := session.get(Version, version_id)) is not None:
            remember_digests(row, found)
    return {}


def _changes(files: Mapping[str, dict[str, Any]]) -> dict[str, str]:
    """By size and time, of files whose bytes nobody has read yet."""
    wrong = {}
    for name, file in files.items():
        path = Path(file["name"])
        if not path.is_file():
            wrong[name] = f"{path} is missing"
            continue
        status = path.stat()
        if (status.st_size, status.st_mtime_ns) != (file["size_bytes"], file["mtime_ns"]):
            wrong[name] = (
                f"{path} has changed since it was registered (it had {file['size_bytes']} bytes and has "
                f"{status.st_size}, or another time); register it anew, which makes another version"
            )
    return wrong


def collect(database: Database, store: ModelStore) -> Stored:
    """Remove from the store what no version needs. Raises: Conflict while models are being added."""
    with store.alone():
        with database.reading() as session:
            rows = session.scalars(select(Version).where(Version.is_stored)).all()
            used = {Path(row.path): frozenset((row.digests or {}).values()) for row in rows}
        trees = {_tree_of(store, path): digests for path, digests in used.items()}
        return store.collect(trees)


def _tree_of(store: ModelStore, path: Path) -> str:
    """Raises: Conflict where the registry knows of another store: nothing here would count as used."""
    trees = store.tree("")
    if not path.is_relative_to(trees):
        raise Conflict(f"a version lies in {path}, which is not in {trees}; was the home moved? Move it back")
    return path.relative_to(trees).parts[0]
