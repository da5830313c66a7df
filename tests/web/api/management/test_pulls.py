"""Models that come from elsewhere, over the management API and from one site to another."""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from sqlalchemy.exc import OperationalError

from trivet.client import Client
from trivet.config import load_settings
from trivet.demo_model import find_demo_model
from trivet.errors import PermissionDenied, RequestError, TrivetError, Unavailable
from trivet.models.model_files import open_model
from trivet_registry.audit_log import Act, list_entries
from trivet_registry.bundles import importing, smoke_test
from trivet_registry.bundles.exporting import export_version
from trivet_registry.bundles.importing import Import
from trivet_registry.bundles.signing import fingerprint, own_key
from trivet_registry.database import open_database
from trivet_registry.model_store.keeping import register_stored, verify_version
from trivet_registry.pulls_store import (
    LOST,
    create_pull,
    end_lost,
    get_pull,
    held,
    is_held,
    list_pulls,
    new_pull_id,
)
from trivet_registry.references import find_version
from trivet_registry.sources.pull import Wanted
from trivet_web.models import pulling, servable
from trivet_web.models.pulling import Puller, keys_folder
from trivet_web.models.servable import given_path

if TYPE_CHECKING:
    from conftest import Live, Site


@pytest.fixture(scope="module")
def client(live: Live) -> Iterator[Client]:
    """Of one server for all tests, each with models of its own."""
    with Client(live.server.url, live.site.token) as client:
        yield client


def ended(client: Client, pull_id: str) -> Any:
    deadline_s = time.monotonic() + 60
    while (pull := client.pulls.get(pull_id)).state == "running":
        assert time.monotonic() < deadline_s
        time.sleep(0.02)
    return pull


def no_plan(*_: object) -> Any:
    raise AssertionError("nothing is launched here")


def test_a_model_of_another_site_comes_whole_and_a_wrong_key_is_told(
    client: Client, live: Live, tmp_path: Path
) -> None:
    client.models.add(str(find_demo_model()), "smollm2", verify=True)
    settings = load_settings({"home": str(tmp_path / "home"), "private_sources": True}, {})
    settings.paths.create()
    database = open_database(settings.resolved_database_url)
    opened: list[Path] = []

    def opens(path: Path) -> Any:
        from trivet.models.model_files import open_model

        opened.append(path)
        return open_model(path)

    puller = Puller(settings, database, opens, no_plan)
    source = f"trivet:{client.base_url}/smollm2:1"

    def bring(key: str) -> Any:
        pull_id = puller.start(Wanted(source, "copy", key))
        while True:
            with database.reading() as session:
                row = get_pull(session, pull_id)
            if row.state != "running":
                return row
            time.sleep(0.01)

    refused = bring("wrong")
    assert (refused.state, "needs a key" in refused.message) == ("failed", True)
    row = bring(live.site.token)
    assert (row.state, row.version, row.done_bytes) == ("done", "copy:1", row.total_bytes), row.message
    assert row.total_bytes == find_demo_model().stat().st_size
    with database.reading() as session:
        version = find_version(session, "copy")
    assert version.digest == client.models.version("smollm2").digest
    assert version.source == source
    assert Path(version.path).read_bytes() == find_demo_model().read_bytes()
    puller.close()
    database.close()


def test_a_pull_that_cannot_be_is_told_by_its_row(client: Client) -> None:
    pull = client.pulls.begin("trivet:http://127.0.0.1:9/x")
    done = ended(client, pull.id)
    assert done.state == "failed"
    assert "is not https" in done.message, "private addresses are not asked unless the site allows it"
    assert client.pulls.list()[0].id == pull.id
    assert client.pulls.cancel(pull.id).state == "failed"


def test_a_pull_whose_process_has_ended_is_said_to_have(site: Site) -> None:
    folder = site.settings.paths.run
    with site.database.session() as session:
        lives, lost = (create_pull(session, new_pull_id(), "hf:a/b", None).id for _ in range(2))
    holds, ends = threading.Event(), threading.Event()

    def hold() -> None:
        with held(folder, lives):
            holds.set()
            ends.wait(30)

    thread = threading.Thread(target=hold)
    thread.start()
    holds.wait(30)
    with site.database.session() as session:
        end_lost(session, folder)
    ends.set()
    thread.join()
    with site.database.reading() as session:
        assert get_pull(session, lives).state == "running"
        assert (get_pull(session, lost).state, get_pull(session, lost).message) == ("failed", LOST)


def test_a_copy_in_the_store_is_verified_used_and_collected(client: Client, tmp_path: Path) -> None:
    file, before = tmp_path / "mine.gguf", client.store.size().num_files
    data = bytearray(find_demo_model().read_bytes())
    data[-1] ^= 1
    file.write_bytes(data)
    version = client.models.add(str(file), "mine", copy=True)
    assert version.is_stored
    file.unlink()
    assert client.models.verify("mine:1").problems == ()
    assert client.models.file("mine:1", "mine.gguf") == data
    assert client.store.collect().num_files == 0
    stored = Path(version.path)
    data[-1] ^= 2
    stored.unlink()
    stored.write_bytes(data)
    (problem,) = client.models.verify("mine").problems
    assert (problem.name, "was registered with" in problem.problem) == ("mine.gguf", True)
    client.models.remove("mine")
    assert client.store.collect().num_files == 1
    assert client.store.size().num_files == before


def test_models_are_registered_from_allowed_folders_only(tmp_path: Path) -> None:
    (tmp_path / "allowed" / "model").mkdir(parents=True)
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "secret").write_text("x")
    (tmp_path / "allowed" / "way-out").symlink_to(tmp_path / "other")
    settings = load_settings({"home": str(tmp_path), "model_roots": str(tmp_path / "allowed")}, {})
    assert given_path(str(tmp_path / "allowed" / "model"), "path", settings)
    (tmp_path / "allowed" / "model" / "config.json").symlink_to(tmp_path / "other" / "secret")
    for path in ("allowed/model", "allowed/way-out/secret", "other/secret", "allowed/../other/secret"):
        with pytest.raises(PermissionDenied, match="model_roots"):
            given_path(str(tmp_path / path), "path", settings)


def test_a_bundle_is_exported_and_taken_in_after_it_answered_one_token(
    client: Client, tmp_path: Path
) -> None:
    client.models.add(str(find_demo_model()), "smollm2")
    made = client.models.export("smollm2:1", str(tmp_path / "smol.bundle"))
    assert (made.version, made.num_files) == ("smollm2:1", 1)
    done = ended(client, client.pulls.begin(f"bundle:{made.path}", "taken").id)
    assert (done.state, done.version) == ("done", "taken:1"), done.message
    details = client.models.version("taken")
    assert (details.signed_by, details.is_stored) == (made.key, True)
    assert {file.sha256 for file in details.files} <= {*client.store.digests()}


def test_a_pull_is_held_before_anybody_can_see_it(site: Site) -> None:
    puller = Puller(site.settings, site.database, lambda path: None, no_plan)

    def begun(session: Any, pull_id: str) -> None:
        assert is_held(puller.folder, pull_id)

    pull_id = puller.start(Wanted("trivet:http://127.0.0.1:9/x"), begun)
    puller.close()
    assert not is_held(puller.folder, pull_id)
    with site.database.reading() as session:
        assert get_pull(session, pull_id).state == "failed"


@pytest.mark.parametrize("is_registered", [False, True])
def test_a_cancel_that_comes_last_is_told_as_what_it_did(
    site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_registered: bool
) -> None:
    """Just before the version is registered it ends the pull, just after that it is too late."""
    path = tmp_path / "a.bundle"
    with site.database.reading() as session:
        name = find_version(session, "smollm2").reference
    verify_version(site.database, name)  # its digests are known then
    export_version(site.database, name, path, own_key(keys_folder(site.settings)))
    puller = Puller(site.settings, site.database, open_model, no_plan)

    def cancel(*_: Any) -> None:
        with site.database.session() as session:
            for row in list_pulls(session):
                row.is_cancelled = True

    def register(*args: Any, **more: Any) -> Any:
        version = register_stored(*args, **more)
        for row in list_pulls(args[0]):
            row.is_cancelled = True
        return version

    if is_registered:
        monkeypatch.setattr(importing, "register_stored", register)
    else:
        monkeypatch.setattr(smoke_test, "answers_one_token", cancel)
        monkeypatch.setattr(pulling, "REPORT_INTERVAL_S", 0.0)
    act = Act("the test", "model.pull")
    pull_id = puller.start(
        Import(path, keys_folder(site.settings), "taken", is_tested=not is_registered), lambda *_: act
    )
    for thread in puller._threads:
        thread.join(60)
    with site.database.reading() as session:
        row = get_pull(session, pull_id)
    assert (row.state, row.version) == (("done", "taken:1") if is_registered else ("cancelled", None))
    (end,) = entries(site, "model.pull.end")
    assert (end["state"], end["version"]) == (row.state, row.version)
    puller.close()


def test_a_pull_whose_end_cannot_be_written_is_told_as_lost(
    site: Site, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(*_: Any) -> None:
        raise OperationalError("UPDATE pulls", {}, Exception("database or disk is full"))

    monkeypatch.setattr(pulling, "end_pull", refuse)
    puller = Puller(site.settings, site.database, lambda path: None, no_plan)
    pull_id = puller.start(Wanted("trivet:http://127.0.0.1:9/x"))
    puller.close()
    assert f"pull={pull_id} state=failed is not written down" in caplog.text
    with site.database.session() as session:
        end_lost(session, puller.folder)
    with site.database.reading() as session:
        assert get_pull(session, pull_id).message == LOST


def test_a_pull_that_no_thread_can_make_has_failed_and_lets_go(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    puller = Puller(site.settings, site.database, lambda path: None, no_plan)

    def start(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", start)
    with pytest.raises(
        Unavailable, match="no thread can pull it: can't start new thread; try again"
    ) as caught:
        puller.start(Wanted("trivet:http://127.0.0.1:9/x"))
    assert caught.value is not None, "what it holds is not let go of by the end of a traceback"
    with site.database.reading() as session:
        (row,) = list_pulls(session)
        assert (row.state, row.message) == ("failed", str(caught.value))
        assert not is_held(puller.folder, row.id)


def test_a_pull_that_cannot_be_recorded_does_not_begin(site: Site) -> None:
    puller = Puller(site.settings, site.database, lambda path: None, no_plan)

    def begun(session: Any, pull_id: str) -> None:
        raise PermissionDenied("no log")

    with pytest.raises(PermissionDenied):
        puller.start(Wanted("trivet:http://127.0.0.1:9/x"), begun)
    puller.close()
    with site.database.reading() as session:
        assert list_pulls(session) == []
    assert not list(puller.folder.glob("pull-*"))


def entries(site: Site, action: str) -> list[dict[str, Any]]:
    """What each entry says, the oldest first."""
    with site.database.reading() as session:
        found = list_entries(session, action=action)
        return [json.loads(entry.after) for entry in reversed(found)]


def test_what_is_no_transaction_is_recorded_before_and_after(
    client: Client, live: Live, tmp_path: Path
) -> None:
    site = live.site
    client.models.add(str(find_demo_model()), "smollm2")
    client.models.verify("smollm2")
    assert [e["state"] for e in entries(site, "model.verify")[-2:]] == ["begun", "done"]
    client.store.collect()
    assert entries(site, "model.collect")[-2] == {"state": "begun"}
    path = str(tmp_path / "smol.bundle")
    client.models.export("smollm2:1", path)
    begun, done = entries(site, "model.export")[-2:]
    assert (begun["path"], begun["state"], done["state"], done["files"]) == (path, "begun", "done", 1)
    with pytest.raises(TrivetError, match="exists"):
        client.models.export("smollm2:1", path)
    with site.database.reading() as session:
        assert list_entries(session, action="model.export")[0].outcome == "failed"
    failed = entries(site, "model.export")[-1]
    assert (failed["state"], "exists" in failed["reason"]) == ("failed", True)


def test_a_pull_is_recorded_with_what_it_was_excused_from_and_how_it_ended(
    client: Client, live: Live, tmp_path: Path
) -> None:
    other = own_key(tmp_path / "other")
    (tmp_path / "none").write_bytes(b"x")
    pem = (tmp_path / "other" / "bundle.pub").read_text()
    pull = client.pulls.begin(
        f"bundle:{tmp_path / 'none'}", trusted_key=pem, allow_older=True, smoke_test=False
    )
    assert ended(client, pull.id).state == "failed"
    act = entries(live.site, "model.pull")[-1]
    assert (act["allow_older"], act["smoke_test"], act["pull"]) == (True, False, pull.id)
    assert act["trusted_key"] == fingerprint(other.public_key())
    end = entries(live.site, "model.pull.end")[-1]
    assert (end["pull"], end["state"], "no whole bundle" in end["message"]) == (pull.id, "failed", True)


def test_a_password_in_an_address_is_refused_and_kept_nowhere(client: Client, live: Live) -> None:
    before = client.pulls.list(), entries(live.site, "model.pull")
    with pytest.raises(RequestError, match="user or password") as caught:
        client.pulls.begin("trivet:https://me:hunter2@127.0.0.1:9/x")
    assert "hunter2" not in str(caught.value)
    assert (client.pulls.list(), entries(live.site, "model.pull")) == before


def test_a_path_outside_is_refused_before_anything_is_walked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "allowed" / "large").mkdir(parents=True)
    settings = load_settings({"home": str(tmp_path), "model_roots": str(tmp_path / "allowed")}, {})
    monkeypatch.setattr(servable, "MAX_ENTRIES", 3)
    for number in range(5):
        (tmp_path / "allowed" / "large" / str(number)).touch()
    with pytest.raises(RequestError, match="more than 3 files"):
        given_path(str(tmp_path / "allowed" / "large"), "path", settings)
    (tmp_path / "allowed" / "deep" / "/".join("abcdefgh")).mkdir(parents=True)
    with pytest.raises(RequestError, match="deeper than 6"):
        given_path(str(tmp_path / "allowed" / "deep"), "path", settings)

    def walk(folder: object) -> None:
        pytest.fail(f"{folder} is walked")

    monkeypatch.setattr(os, "walk", walk)
    monkeypatch.setattr(Path, "rglob", walk)
    with pytest.raises(PermissionDenied, match="model_roots"):
        given_path("/usr", "model", settings)
