"""A site goes into one file while it is used, and comes out whole: elsewhere, and on another database."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import sqlite3
import tarfile
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from trivet.config import Settings
from trivet.errors import ConfigError, Conflict
from trivet_registry.audit_log import Act, append, list_entries, verify
from trivet_registry.backups import registry_copy, restoring, writing
from trivet_registry.backups.manifest import MANIFEST, REGISTRY
from trivet_registry.backups.restoring import check_backup, restore
from trivet_registry.backups.writing import remove_oldest, write_backup
from trivet_registry.database import Database, open_database
from trivet_registry.keys_store import KeySettings, create_key, find_key
from trivet_registry.model_store.keeping import collect, register_stored, verify_version
from trivet_registry.model_store.store import ModelStore
from trivet_registry.references import find_version
from trivet_registry.users_store import (
    create_user,
    find_user,
    get_user,
    hash_of,
    list_sessions,
    open_session,
    remove_user,
)

if TYPE_CHECKING:
    from conftest import Files

WEIGHTS = b"W" * 70_000


@contextmanager
def registry(settings: Settings) -> Iterator[Database]:
    with closing(open_database(settings.resolved_database_url)) as database:
        yield database


@pytest.fixture
def site(
    tmp_path: Path, new_registry_url: Callable[[Path], str], make_files: Callable[..., Files]
) -> Settings:
    """With users, a key, a stored model and a stored answer."""
    home = tmp_path / "home"
    settings = Settings(home=str(home), database_url=new_registry_url(tmp_path))
    settings.paths.create()
    (settings.paths.stored / "batches").mkdir()
    (settings.paths.stored / "batches" / "one.json").write_text("{}")
    settings.paths.keys.mkdir()
    (settings.paths.keys / "bundle.key").write_text("secret")
    (settings.paths.logs / "web.log").write_text("a line")
    settings.paths.config_file.write_text("retention_days = 3\n")
    store = ModelStore(settings.paths.models)
    (tmp_path / "weights.gguf").write_bytes(WEIGHTS)
    with registry(settings) as database, store.adding():
        digest = store.add_file(tmp_path / "weights.gguf")
        file = store.build_tree({"weights.gguf": digest}) / "weights.gguf"
        files = replace(make_files(), path=file, files=(file,), size_bytes=len(WEIGHTS))
        with database.session() as session:
            register_stored(session, files, {"weights.gguf": digest}, "smol", "local")
            alice, gone = (create_user(session, name, "admin", "h") for name in ("alice", "gone"))
            open_session(session, alice, "s3cret", "127.0.0.1", "test")
            session.flush()
            remove_user(session, gone)
            append(session, Act("user alice", "test.act", "thing", {"a": 1}, {"a": 2}))
    return settings


def make_key(settings: Settings) -> str:
    with registry(settings) as database, database.session() as session:
        return create_key(session, get_user(session, "alice"), KeySettings("ci", models=["m"]))[1]


def new_site(folder: Path, url: str | None = None) -> Settings:
    settings = Settings(home=str(folder), database_url=url)
    settings.paths.create()
    return settings


def test_a_site_comes_back_at_another_place_on_another_database_and_from_there_again(
    site: Settings, tmp_path: Path, registries: Any
) -> None:
    key = make_key(site)
    write_backup(site, tmp_path / "one.tar")
    other = new_site(tmp_path / "other")
    restored = restore(other, tmp_path / "one.tar", other.resolved_database_url)
    assert not restored.missing
    check_site(other, key)
    write_backup(other, tmp_path / "two.tar")
    (tmp_path / "third").mkdir()
    third = new_site(tmp_path / "third", registries.empty(tmp_path / "third"))
    restore(third, tmp_path / "two.tar", third.database_url)
    check_site(third, key)


def check_site(settings: Settings, key: str) -> None:
    paths = settings.paths
    assert paths.config_file.read_text() == "retention_days = 3\n"
    assert (paths.stored / "batches" / "one.json").read_text() == "{}"
    assert (paths.keys / "bundle.key").read_text() == "secret"
    assert not list(paths.logs.iterdir()), "logs are no part of it"
    with registry(settings) as database:
        with database.session() as session:
            row = find_key(session, hash_of(key))
            assert row is not None
            assert (row.name, row.models) == ("ci", ["m"])
            assert row.user is not None
            assert row.user.name == "alice"
            assert not list_sessions(session), "logins end"
            version = find_version(session, "smol")
            assert Path(version.path).is_relative_to(paths.models)
            assert Path(version.path).read_bytes() == WEIGHTS
            assert Path(version.path).stat().st_mtime_ns == version.files[0]["mtime_ns"]
            assert Path(version.path).stat().st_nlink == 2, "the store's file, and the version's link to it"
            assert verify(session).fault is None
            assert "site.restore" in [entry.action for entry in list_entries(session)]
            new = create_user(session, f"new{len(list_entries(session))}", "user", "h")
            session.flush()
            assert new.id > 2, "the id of a removed user is not given again"
            remove_user(session, new)
        assert verify_version(database, "smol", ModelStore(paths.models)) == {}
        assert collect(database, ModelStore(paths.models)).num_files == 0


def test_the_same_home_and_database_are_refused_and_stay_as_they_are(site: Settings, tmp_path: Path) -> None:
    write_backup(site, tmp_path / "one.tar")
    with pytest.raises(Conflict, match=r"move .* away first"):
        restore(site, tmp_path / "one.tar")
    other = new_site(tmp_path / "other", site.database_url)
    with pytest.raises(Conflict, match=r"exists; a backup|has tables"):
        restore(other, tmp_path / "one.tar", other.database_url)
    assert not other.paths.config_file.exists()
    assert not (other.paths.home / "restoring").exists()
    with registry(site) as database, database.reading() as session:
        assert find_user(session, "alice") is not None


@pytest.mark.parametrize("ends", [["-wal", "-shm"], ["-journal"]])
def test_what_a_crash_left_of_a_registry_that_was_moved_away_is_refused(
    site: Settings, tmp_path: Path, ends: list[str]
) -> None:
    """SQLite would apply it to the registry that is restored."""
    write_backup(site, tmp_path / "one.tar")
    (tmp_path / "crashed").mkdir()
    other = new_site(tmp_path / "other")
    with closing(open_database(f"sqlite:///{tmp_path}/crashed/registry.db")):
        for end in ends:
            left = tmp_path / "crashed" / f"registry.db{end}"
            if end == "-journal":  # of a file that was not in WAL mode
                left.write_text("a page")
            shutil.copyfile(left, other.paths.home / left.name)
    with pytest.raises(Conflict, match=f"{', '.join(f'.*registry.db{end}' for end in ends)} exist"):
        restore(other, tmp_path / "one.tar", other.resolved_database_url)
    assert not (other.paths.home / "registry.db").exists()
    assert not other.paths.config_file.exists()


def test_the_registry_is_whole_when_it_appears_and_nothing_follows(
    site: Settings, tmp_path: Path, registries: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    key = make_key(site)
    write_backup(site, tmp_path / "one.tar")
    (tmp_path / "other").mkdir()
    other = new_site(tmp_path / "other", registries.empty(tmp_path / "other"))
    load = restoring.load_registry

    def load_and_be_killed(file: Path, url: str) -> None:
        load(file, url)
        raise KeyboardInterrupt

    monkeypatch.setattr(restoring, "load_registry", load_and_be_killed)
    with pytest.raises(KeyboardInterrupt):
        restore(other, tmp_path / "one.tar", other.database_url)
    check_site(other, key)


def test_a_registry_that_cannot_be_made_leaves_none_and_says_what_to_remove(
    site: Settings, tmp_path: Path, registries: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_backup(site, tmp_path / "one.tar")
    (tmp_path / "other").mkdir()
    other = new_site(tmp_path / "other", registries.empty(tmp_path / "other"))

    def refuse(*_: object) -> None:
        raise sqlite3.OperationalError("disk is full")

    monkeypatch.setattr(registry_copy, "copy_sqlite", refuse)  # of one kind
    monkeypatch.setattr(registry_copy, "_give_none_again", refuse)  # of the other
    with pytest.raises(ConfigError, match=f"disk is full.*{other.paths.home} has all else by now: remove it"):
        restore(other, tmp_path / "one.tar", other.database_url)
    registry_copy.require_no_registry(str(other.database_url))


def test_what_is_changed_or_cut_off_is_found_before_anything_is_made(site: Settings, tmp_path: Path) -> None:
    file = write_backup(site, tmp_path).path
    whole = file.read_bytes()
    assert check_backup(file).num_files == 6  # registry, settings, key, answer, blob and link
    at = whole.index(WEIGHTS)
    for damage, message in (
        (whole[:at] + b"X" + whole[at + 1 :], r"home/models/\S+.* not what was backed up"),
        (whole[: at + 5000], "no whole backup"),
        (whole[:at], "no whole backup"),
        (b"", "cannot be read as a backup|no whole backup"),
    ):
        file.write_bytes(damage)
        with pytest.raises(ConfigError, match=message):
            check_backup(file)
        other = new_site(tmp_path / "other")
        with pytest.raises(ConfigError, match=message):
            restore(other, file)
        assert sorted(entry.name for entry in other.paths.home.iterdir()) == [
            "logs",
            "models",
            "run",
            "stored",
        ]
        assert not list(other.paths.models.iterdir())


def test_a_registry_of_a_newer_release_is_found_by_a_check_too(site: Settings, tmp_path: Path) -> None:
    file = write_backup(site, tmp_path).path
    with tarfile.open(file) as tar:
        tar.extractall(tmp_path / "in", filter="data")
    registry = tmp_path / "in" / REGISTRY
    with closing(sqlite3.connect(registry)) as connection, connection:
        connection.execute("UPDATE alembic_version SET version_num = '9999'")
    manifest = tmp_path / "in" / MANIFEST
    about = json.loads(manifest.read_bytes()) | {"trivet": "99.1"}
    for kept in about["files"]:
        if kept["name"] == REGISTRY:
            kept["sha256"] = hashlib.sha256(registry.read_bytes()).hexdigest()
    manifest.write_text(json.dumps(about))
    newer = tmp_path / "newer.tar"
    with tarfile.open(newer, "w") as tar:
        for name in [*(kept["name"] for kept in about["files"]), MANIFEST]:  # which comes last
            tar.add(tmp_path / "in" / name, name)
    message = "newer.tar, made by Trivet 99.1, cannot be opened by this one, .*9999"
    with pytest.raises(ConfigError, match=message):
        check_backup(newer)
    with pytest.raises(ConfigError, match=message):
        restore(new_site(tmp_path / "other"), newer)


@pytest.mark.parametrize("name", ["../out", "home/../../out", "/out", "home/x"])
def test_a_member_that_leads_out_of_the_home_or_is_no_file_is_refused(tmp_path: Path, name: str) -> None:
    file = tmp_path / "bad.tar"
    with tarfile.open(file, "w") as tar:
        member = tarfile.TarInfo(name)
        member.type, member.linkname = (
            (tarfile.SYMTYPE, "/etc/passwd") if name == "home/x" else (tarfile.REGTYPE, "")
        )
        tar.addfile(member)
    other = new_site(tmp_path / "other")
    with pytest.raises(ConfigError, match="no part of a backup"):
        restore(other, file)
    assert not (tmp_path / "out").exists()


def test_models_can_be_left_out_and_are_named_when_they_are_missed(site: Settings, tmp_path: Path) -> None:
    file = write_backup(site, tmp_path, with_models=False).path
    other = new_site(tmp_path / "other")
    assert restore(other, file, other.resolved_database_url).missing == ["smol:1"]


def test_nothing_is_collected_while_it_is_written(
    site: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save = writing.save_registry
    refused = []

    def save_and_collect(url: str, to: Path) -> None:
        save(url, to)
        with registry(site) as database, pytest.raises(Conflict):
            collect(database, ModelStore(site.paths.models))
        refused.append(True)

    monkeypatch.setattr(writing, "save_registry", save_and_collect)
    write_backup(site, tmp_path)
    assert refused


def test_what_is_written_meanwhile_is_in_it_whole_or_not_at_all(
    site: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A journal that grows, an answer that is removed."""
    journal, answer = (site.paths.stored / "batches" / name for name in ("a.journal", "one.json"))
    journal.write_text("1\n")
    save = writing.save_registry

    def save_and_remove(url: str, to: Path) -> None:
        save(url, to)
        answer.unlink()

    fstat = os.fstat

    def fstat_and_append(handle: int) -> os.stat_result:
        status = fstat(handle)
        if status.st_ino == journal.stat().st_ino:
            with journal.open("a") as more:
                more.write("2\n")
        return status

    monkeypatch.setattr(writing, "save_registry", save_and_remove)
    monkeypatch.setattr(writing.os, "fstat", fstat_and_append)
    file = write_backup(site, tmp_path).path
    monkeypatch.undo()
    other = new_site(tmp_path / "other")
    restore(other, file, other.resolved_database_url)
    assert [path.name for path in (other.paths.stored / "batches").iterdir()] == ["a.journal"]
    assert (other.paths.stored / "batches" / "a.journal").read_text() == "1\n"


def test_a_file_that_exists_stays_and_a_failure_leaves_nothing(site: Settings, tmp_path: Path) -> None:
    folder = tmp_path / "backups"
    folder.mkdir()
    (folder / "one.tar").write_text("mine")
    with pytest.raises(Conflict, match="exists"):
        write_backup(site, folder / "one.tar")
    assert (folder / "one.tar").read_text() == "mine"
    with pytest.raises(ConfigError, match="no registry at"):
        write_backup(new_site(tmp_path / "empty"), folder)
    assert [path.name for path in folder.iterdir()] == ["one.tar"]


def test_the_file_is_for_its_account_only(site: Settings, tmp_path: Path) -> None:
    assert write_backup(site, tmp_path).path.stat().st_mode & 0o777 == 0o600


def test_the_oldest_of_a_folder_go_and_other_files_stay(tmp_path: Path) -> None:
    names = [f"trivet-202611{day:02}T030000Z.tar" for day in range(1, 6)]
    for name in (*names, "other.tar", "trivet-old.tar"):
        (tmp_path / name).touch()
    assert [path.name for path in remove_oldest(tmp_path, 2)] == names[:3]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["other.tar", *names[3:], "trivet-old.tar"]
