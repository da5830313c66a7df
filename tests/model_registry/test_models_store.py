from __future__ import annotations

import dataclasses
import hashlib
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import select

from trivet.errors import Conflict, ModelFilesError, ModelNotFound, RequestError
from trivet_registry.database import Database
from trivet_registry.deployments_store import create_deployment, list_deployments, stop_deployment
from trivet_registry.instance_state import InstanceState
from trivet_registry.instances_store import create_instance, move_instance
from trivet_registry.models_store import Signature, list_models, register_model, remove_model
from trivet_registry.references import find_version
from trivet_registry.tables import Event, Version

MakeFiles = Callable[..., Any]


def test_registering_the_same_files_again_gives_the_same_version(db: Database, make_files: MakeFiles) -> None:
    files = make_files()
    with db.session() as session:
        first = register_model(session, files)
    with db.session() as session:
        assert register_model(session, files).id == first.id
        assert register_model(session, files, name="tiny").id == first.id


def test_changed_files_are_another_version(db: Database, make_files: MakeFiles) -> None:
    with db.session() as session:
        register_model(session, make_files(content=b"one"))
        second = register_model(session, make_files(content=b"longer"))
    assert (second.name, second.version) == ("tiny", 2)
    with db.reading() as session:
        assert [[v.version for v in m.versions] for m in list_models(session)] == [[1, 2]]


@pytest.mark.parametrize(
    ("odd", "told"),
    [
        ({"architecture": "x" * 129}, "129 characters; at most 128"),
        ({"context_length": 2**31}, "2147483648 tokens"),
    ],
)
def test_what_no_column_holds_is_refused_in_a_sentence(
    db: Database, make_files: MakeFiles, odd: dict[str, Any], told: str
) -> None:
    with pytest.raises(ModelFilesError, match=told), db.session() as session:
        register_model(session, dataclasses.replace(make_files(), **odd))


def test_one_set_of_files_may_have_two_names(db: Database, make_files: MakeFiles) -> None:
    with db.session() as session:
        register_model(session, make_files(), name="a")
        register_model(session, make_files(), name="b")
        assert [m.name for m in list_models(session)] == ["a", "b"]


def test_versions_are_found_by_name_and_number(db: Database, make_files: MakeFiles) -> None:
    with db.session() as session:
        register_model(session, make_files(content=b"one"))
        register_model(session, make_files(content=b"longer"))
        assert find_version(session, "tiny").version == 2
        assert find_version(session, "tiny:1").version == 1


@pytest.mark.parametrize("reference", ["other", "tiny:9", "tiny:latest", ""])
def test_a_missing_model_lists_what_exists(db: Database, make_files: MakeFiles, reference: str) -> None:
    with db.session() as session:
        register_model(session, make_files())
        with pytest.raises(ModelNotFound, match="registered: tiny:1"):
            find_version(session, reference)


def test_a_version_cannot_be_changed(db: Database, make_files: MakeFiles) -> None:
    with db.session() as session:
        register_model(session, make_files())
    with pytest.raises(ValueError, match="immutable; path"), db.session() as session:
        session.scalars(select(Version)).one().path = "/elsewhere"


@pytest.mark.parametrize("name", ["a/b", "a:b", "", "-x", "x" * 129, "a b"])
def test_a_name_that_is_unsafe_is_refused(db: Database, make_files: MakeFiles, name: str) -> None:
    with db.session() as session, pytest.raises(RequestError, match="not usable") as caught:
        register_model(session, make_files(), name=name)
    assert caught.value.param == "name"


def test_a_file_name_becomes_a_usable_name(db: Database, make_files: MakeFiles) -> None:
    with db.session() as session:
        assert register_model(session, make_files("Qwen 3 (4B)")).name == "Qwen-3-4B"


def test_a_model_in_use_cannot_be_removed(db: Database, make_files: MakeFiles) -> None:
    with db.session() as session:
        version = register_model(session, make_files())
        deployment = create_deployment(session, name="chat", version=version)
        instance = create_instance(session, deployment)
    with db.session() as session, pytest.raises(Conflict, match="deployment chat"):
        remove_model(session, "tiny")
    with db.session() as session:
        stop_deployment(session, "chat")
    with db.session() as session, pytest.raises(Conflict, match="deployment chat"):
        remove_model(session, "tiny")  # its instance still lives
    with db.session() as session:
        move_instance(session, instance.id, InstanceState.STOPPED)
        remove_model(session, "tiny")
    with db.reading() as session:
        assert not list_models(session)
        assert not list_deployments(session)
        assert session.scalars(select(Event).where(Event.reason == "removed tiny")).one()


def test_one_version_is_removed_and_the_others_stay(db: Database, make_files: MakeFiles) -> None:
    with db.session() as session:
        first = register_model(session, make_files(content=b"one"))
        create_deployment(session, name="chat", version=first)
        second = register_model(session, make_files(content=b"longer"))
        create_deployment(session, name="other", version=second)
    with db.session() as session, pytest.raises(Conflict, match="'tiny:1' is used by deployment chat;"):
        remove_model(session, "tiny:1")
    with db.session() as session:
        stop_deployment(session, "chat")
        remove_model(session, "tiny:1")
    with db.reading() as session:
        assert [[v.version for v in m.versions] for m in list_models(session)] == [[2]]
        assert [d.name for d in list_deployments(session)] == ["other"]
    with db.session() as session, pytest.raises(ModelNotFound, match="registered: tiny:2"):
        remove_model(session, "tiny:1")
    with db.session() as session:
        stop_deployment(session, "other")
        remove_model(session, "tiny:2")
    with db.reading() as session:
        assert not list_models(session)  # with its last version the model goes


def test_removing_an_unknown_model_is_not_found(db: Database) -> None:
    with db.session() as session, pytest.raises(ModelNotFound, match="no model is registered"):
        remove_model(session, "x")


def test_a_number_is_not_given_again_after_removal(db: Database, make_files: Callable[..., object]) -> None:
    def register(content: bytes) -> str:
        with db.session() as session:
            return register_model(session, make_files("tiny", content), "tiny").reference

    assert [register(b"1"), register(b"22")] == ["tiny:1", "tiny:2"]
    with db.session() as session:
        remove_model(session, "tiny:2")
    assert register(b"333") == "tiny:3"
    with db.session() as session:
        remove_model(session, "tiny")
    assert register(b"1") == "tiny:4"


def digests(content: bytes) -> dict[str, str]:
    return {"tiny.gguf": hashlib.sha256(content).hexdigest()}


def test_other_bytes_with_the_old_size_and_time_are_another_version(
    db: Database, make_files: MakeFiles
) -> None:
    files = make_files(content=b"one")
    times = files.path.stat()
    with db.session() as session:
        register_model(session, files, "tiny", digests=digests(b"one"))
    files.path.write_bytes(b"two")
    os.utime(files.path, ns=(times.st_atime_ns, times.st_mtime_ns))
    with db.session() as session:
        assert register_model(session, files, "tiny", digests=digests(b"two")).version == 2
        assert register_model(session, files, "tiny").version == 2, "nobody says what the bytes are"


def test_a_folder_that_was_moved_is_registered_where_it_is_now(
    db: Database, make_files: MakeFiles, tmp_path: Path
) -> None:
    files = make_files(content=b"one")
    with db.session() as session:
        register_model(session, files, "tiny", digests=digests(b"one"))
    (tmp_path / "moved").mkdir()
    moved = files.path.rename(tmp_path / "moved" / files.path.name)
    there = replace(files, path=moved, files=(moved,))
    with db.session() as session:
        version = register_model(session, there, "tiny", digests=digests(b"one"))
        assert (version.version, version.path) == (2, str(moved))


def test_a_copy_in_the_store_is_no_version_that_lies_elsewhere(db: Database, make_files: MakeFiles) -> None:
    files = make_files(content=b"one")
    known = digests(b"one")
    signature = Signature("key", 7)
    with db.session() as session:
        register_model(session, files, "tiny", digests=known)
        stored = register_model(session, files, "tiny", digests=known, is_stored=True)
        assert (stored.version, stored.is_stored) == (2, True)
    with db.session() as session:
        for _ in range(2):
            again = register_model(session, files, "tiny", digests=known, is_stored=True, signature=signature)
            assert (again.version, again.signed_by, again.signed_version) == (2, "key", 7)
