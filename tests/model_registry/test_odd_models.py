"""Models that nobody sane would offer: refused in a sentence, or taken in as they are; never half."""

from __future__ import annotations

import json
import os
import resource
import shutil
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from trivet.contract_suite.tiny_models import make_tiny_model
from trivet.demo_model import find_demo_model
from trivet.errors import ModelFilesError, TrivetError, Unavailable
from trivet.models.model_files import open_model
from trivet_registry.database import Database
from trivet_registry.digests import digests_of, ignore_progress, sha256_of
from trivet_registry.model_store.keeping import (
    collect,
    copy_into,
    open_stored,
    register_stored,
    verify_version,
)
from trivet_registry.model_store.store import ModelStore
from trivet_registry.models_store import list_models, register_model

ODD = [
    None,
    True,
    -1,
    0,
    1 << 70,
    1e308,
    float("nan"),
    "",
    "x" * 5000,
    [],
    [[]],
    {},
    {"a": 1},
    "\ud800",
    [1] * 1000,
]
CopyIn = Callable[..., str]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_model("llama-tied", tmp_path_factory.mktemp("tiny"))


@pytest.fixture
def folder(made: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(made, tmp_path / "model"))


@pytest.fixture
def store(tmp_path: Path) -> ModelStore:
    return ModelStore(tmp_path / "models")


@pytest.fixture
def copy_in(store: ModelStore, db: Database) -> CopyIn:
    def run(path: Path, progress: Callable[[int], None] = ignore_progress) -> str:
        files = open_model(path)
        with store.adding():
            digests = copy_into(store, files, progress)
            stored = open_stored(store, digests, open_model)
            with db.session() as session:
                return register_stored(session, stored, digests, "odd", "local").reference

    return run


def test_config_values_of_any_kind_are_taken_or_refused_in_words(folder: Path) -> None:
    config = json.loads((folder / "config.json").read_text())
    refused: list[str] = []
    for key in config:
        for value in ODD:
            (folder / "config.json").write_text(json.dumps({**config, key: value}))
            try:
                open_model(folder)
            except TrivetError as error:
                refused.append(str(error))
    assert len(refused) > len(config)
    assert all(refused)


@pytest.mark.parametrize(
    "content", ["[]", "null", "1", '"x"', "", "{", "[" * 100_000, '{"a": 1, "a": 2}', "\x00"]
)
def test_a_config_that_is_no_object_is_refused(folder: Path, content: str) -> None:
    (folder / "config.json").write_text(content)
    with pytest.raises(TrivetError):
        open_model(folder)


@pytest.mark.parametrize(
    "name", ["模型 七", "a b  c", "é" * 60, "-rf", "$(id)", "a'b\"c", "..model", "x" * 200]
)
def test_names_of_files_and_folders_are_only_names(
    made: Path, tmp_path: Path, copy_in: CopyIn, db: Database, name: str
) -> None:
    reference = copy_in(Path(shutil.copytree(made, tmp_path / name)))
    gguf = tmp_path / f"{name}.gguf"
    gguf.write_bytes(find_demo_model().read_bytes())
    with db.session() as session:
        version = register_model(session, open_model(gguf))
        assert version.name.isascii(), "it is part of addresses"
    for one in (reference, version.reference):
        assert verify_version(db, one) == {}


def test_a_file_that_grows_while_it_is_copied_or_read_is_refused(
    folder: Path, copy_in: CopyIn, db: Database
) -> None:
    first = folder / "config.json"  # which is read first

    grown: list[int] = []

    def grow(count: int) -> None:
        if not grown:
            with first.open("ab") as file:
                grown.append(file.write(b"more"))

    with pytest.raises(ModelFilesError, match="changed while it was read"):
        sha256_of(first, grow)
    os.truncate(first, first.stat().st_size - grown.pop())
    with pytest.raises(ModelFilesError, match="changed while it was read"):
        copy_in(folder, grow)
    with db.reading() as session:
        assert list_models(session) == []


def test_two_imports_at_once_are_one_version(folder: Path, copy_in: CopyIn, db: Database) -> None:
    together, done = threading.Barrier(3), []

    def run() -> None:
        together.wait(30)
        done.append(copy_in(folder))

    threads = [threading.Thread(target=run) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert done == ["odd:1"] * 3
    assert verify_version(db, "odd") == {}


@pytest.fixture
def small_disk() -> Iterator[None]:
    """No file of this process can be larger than 1 MiB, as on a disk that is full by then."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, hard))
    yield
    resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_a_full_disk_is_told_and_leaves_nothing(
    copy_in: CopyIn, store: ModelStore, db: Database, small_disk: None
) -> None:
    with pytest.raises(Unavailable, match="takes nothing more"):
        copy_in(find_demo_model())
    with db.reading() as session:
        assert list_models(session) == []
    collect(db, store)
    assert list(store.partial.iterdir()) == []


def test_a_sparse_file_is_copied_as_what_it_says(folder: Path, copy_in: CopyIn, db: Database) -> None:
    sparse = folder / "README.md"
    with sparse.open("wb") as file:
        file.truncate(1 << 20)
    reference = copy_in(folder)
    assert verify_version(db, reference) == {}


def test_a_link_out_of_the_folder_is_the_file_that_it_leads_to(
    folder: Path, copy_in: CopyIn, db: Database
) -> None:
    target = folder.parent / "elsewhere"
    (folder / "config.json").rename(target)
    (folder / "config.json").symlink_to(target)
    reference = copy_in(folder)
    target.unlink()
    assert verify_version(db, reference) == {}, "the store has a copy"
    with pytest.raises(TrivetError):
        digests_of(open_model(folder))


def test_a_ring_of_links_and_a_pipe_are_refused_at_once(folder: Path, copy_in: CopyIn) -> None:
    config: Any = folder / "config.json"
    config.unlink()
    config.symlink_to("config.json")
    with pytest.raises(TrivetError):
        copy_in(folder)
