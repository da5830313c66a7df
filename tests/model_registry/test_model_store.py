"""Files in the store are there once, and what is damaged is repaired by adding it again."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from trivet_registry.database import Database
from trivet_registry.digests import digests_of
from trivet_registry.model_store.keeping import collect, register_stored, verify_version
from trivet_registry.model_store.store import ModelStore
from trivet_registry.models_store import register_model
from trivet_registry.references import find_version


@pytest.fixture
def store(tmp_path: Path) -> ModelStore:
    return ModelStore(tmp_path / "models")


@pytest.fixture
def add(store: ModelStore, tmp_path: Path) -> Callable[..., Path]:
    """A tree of files with these bytes."""

    def add(**files: bytes) -> Path:
        digests = {}
        for name, data in files.items():
            (tmp_path / name).write_bytes(data)
            digests[name] = store.add_file(tmp_path / name)
        return store.build_tree(digests)

    return add


def rot(file: Path) -> None:
    """Other bytes in the same inode."""
    file.chmod(0o644)
    file.write_bytes(b"R" * file.stat().st_size)


def inodes(*files: Path) -> set[int]:
    return {file.stat().st_ino for file in files}


def test_versions_share_a_file_that_is_added_twice(store: ModelStore, add: Callable[..., Path]) -> None:
    with store.adding():
        one, two = add(weights=b"W" * 5000, config=b"1"), add(weights=b"W" * 5000, config=b"2")
    (blob,) = [store.blob(name) for name in store.digests() if store.blob(name).stat().st_size == 5000]
    assert len(inodes(one / "weights", two / "weights", blob)) == 1
    assert blob.stat().st_nlink == 3
    assert not list(store.partial.iterdir())


def test_adding_a_damaged_file_again_repairs_all_that_have_it(
    store: ModelStore, add: Callable[..., Path]
) -> None:
    with store.adding():
        one, two = add(weights=b"W" * 5000, config=b"1"), add(weights=b"W" * 5000, config=b"2")
        rot(one / "weights")
        assert (two / "weights").read_bytes() == b"R" * 5000
        assert add(weights=b"W" * 5000, config=b"1") == one
    for tree in (one, two):
        assert (tree / "weights").read_bytes() == b"W" * 5000
    blob = store.blob(next(name for name in store.digests() if store.blob(name).stat().st_size == 5000))
    assert len(inodes(one / "weights", two / "weights", blob)) == 1
    assert store.usage().size_bytes == 5002


def test_what_took_the_place_of_a_file_is_replaced(store: ModelStore, add: Callable[..., Path]) -> None:
    with store.adding():
        tree = add(weights=b"W" * 5000)
        (tree / "weights").unlink()
        (tree / "weights").write_bytes(b"X")
        add(weights=b"W" * 5000)
        assert (tree / "weights").read_bytes() == b"W" * 5000
        (tree / "weights").unlink()
        add(weights=b"W" * 5000)
        assert (tree / "weights").read_bytes() == b"W" * 5000


def test_a_damaged_blob_counts_as_missing_after_verify_has_named_it(
    store: ModelStore, db: Database, make_files: Callable[..., object], tmp_path: Path
) -> None:
    files = make_files("tiny", b"GGUF" * 100)

    def stored() -> str:
        with store.adding():
            digest = store.add_file(files.path)
            tree = store.build_tree({"tiny.gguf": digest})
            own = make_files("tiny", b"GGUF" * 100)
            place = tree / "tiny.gguf"
            moved = type(own)(path=place, name="tiny", files=(place,))
            with db.session() as session:
                register_stored(session, moved, {"tiny.gguf": digest}, "tiny", "file:x")
        return digest

    digest = stored()
    assert verify_version(db, "tiny", store) == {}
    with db.reading() as session:
        place = Path(find_version(session, "tiny").path)
    rot(place)
    assert store.has(digest)
    assert list(verify_version(db, "tiny", store)) == ["tiny.gguf"]
    assert not store.has(digest)
    assert place.exists()
    assert collect(db, store).num_files == 0, "it is in use"
    assert stored() == digest
    assert verify_version(db, "tiny", store) == {}
    assert inodes(place) == inodes(store.blob(digest))


def test_files_that_nobody_has_read_are_compared_by_size_and_time_first(
    db: Database, make_files: Callable[..., object]
) -> None:
    files = make_files("tiny", b"GGUF")
    with db.session() as session:
        register_model(session, files, "tiny")
    before = files.path.stat()
    files.path.write_bytes(b"EVIL")
    os.utime(files.path, ns=(before.st_atime_ns, before.st_mtime_ns + 1))
    for _ in range(2):
        (problem,) = verify_version(db, "tiny").values()
        assert "has changed since it was registered" in problem
    with db.reading() as session:
        assert find_version(session, "tiny").digests is None
    files.path.write_bytes(b"GGUF")
    os.utime(files.path, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert verify_version(db, "tiny") == {}
    with db.reading() as session:
        assert find_version(session, "tiny").digests == digests_of(files)
    files.path.unlink()
    assert "is missing" in verify_version(db, "tiny")["tiny.gguf"]
