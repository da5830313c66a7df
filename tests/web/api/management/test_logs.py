"""The end of a log, however large, and what is appended to it."""

from __future__ import annotations

import io
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from trivet_registry.instance_state import InstanceState
from trivet_registry.instances_store import move_instance
from trivet_registry.tables import Instance
from trivet_web.api.management import logs
from trivet_web.api.management.logs import MAX_TAIL_BYTES, TAIL_BLOCK, Follower, last_lines
from trivet_web.web_process import EXTENSION

if TYPE_CHECKING:
    from conftest import Site
    from flask.testing import FlaskClient


@pytest.mark.parametrize("count", [0, 1, 3, 5000, 10**5])
def test_last_lines_are_those_of_the_whole_file(count: int) -> None:
    lines = [b"line %d\n" % number for number in range(3 * TAIL_BLOCK // 10)]
    assert last_lines(io.BytesIO(b"".join(lines)), count) == b"".join(lines[-count:] if count else [])


@pytest.mark.parametrize("end", [b"", b"\n"])
def test_a_progress_bar_is_one_line(end: bytes) -> None:
    bar = b"load 1%\rload 2%\rload 3%\n"
    log = io.BytesIO(b"one\n" + bar + b"ready\n\nlast" + end)
    assert last_lines(log, 4) == bar + b"ready\n\nlast" + end
    assert last_lines(log, 100) == log.getvalue()
    assert last_lines(io.BytesIO(end), 3) == end


def test_log_without_line_breaks_is_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logs, "MAX_TAIL_BYTES", 2 * TAIL_BLOCK)
    log = io.BytesIO(b"x" * (10 * TAIL_BLOCK))
    assert len(last_lines(log, 200)) == 2 * TAIL_BLOCK
    assert MAX_TAIL_BYTES > 2 * TAIL_BLOCK


def test_what_is_appended_while_the_end_is_shown_is_read_next(tmp_path: Path) -> None:
    file = tmp_path / "a.log"
    shown = b"a line\n" * (2 * TAIL_BLOCK // 7)  # several blocks: the last one read is not the last
    file.write_bytes(shown)
    with file.open("rb") as log, file.open("ab", buffering=0) as engine:
        assert last_lines(log, 10**6) == shown
        engine.write(b"three\n")
        assert log.read() == b"three\n"


def test_logs_of_the_site_itself_are_read_and_no_other_file(site: Site, site_client: FlaskClient) -> None:
    folder = site.settings.paths.logs
    (folder / "web.log").write_text("one\ntwo\nthree\n")
    (folder / "secret.log").write_text("not told\n")
    headers = {"Authorization": f"Bearer {site.token}"}
    assert site_client.get("/platform/v1/site-logs/web?tail=2", headers=headers).text == "two\nthree\n"
    for name in ("secret", "..%2Fweb", "web.log"):
        answer = site_client.get(f"/platform/v1/site-logs/{name}", headers=headers)
        assert answer.status_code == 404, name
        assert "not told" not in answer.text


def test_a_log_that_was_removed_is_told_and_its_successors_is_followed(
    site: Site, site_client: FlaskClient, tmp_path: Path
) -> None:
    instance = site.add_instance(InstanceState.PLACING, InstanceState.STARTING)
    with site.database.session() as session:
        session.get_one(Instance, instance).log_file = str(tmp_path / "gone.log")
    address = f"/platform/v1/logs/{instance}"
    headers = {"Authorization": f"Bearer {site.token}"}
    assert site_client.get(address, headers=headers).status_code == 200, "it has said nothing yet"
    with site.database.session() as session:
        for state in (InstanceState.STOPPING, InstanceState.STOPPED):
            move_instance(session, instance, state, "told to")
    for query in ("", "?follow=1"):
        removed = site_client.get(address + query, headers=headers)
        assert (removed.status_code, "was removed: it is stopped" in removed.text) == (404, True)
    following = tmp_path / "next.log"
    following.write_text("ready\n")
    process = site_client.application.extensions[EXTENSION]
    follower = Follower(process, tmp_path / "gone.log", 10, None, lambda file: following, lambda: True)
    pieces = iter(follower)
    assert next(pieces) == b"\n==== next.log ====\n"
    assert next(pieces) == b"ready\n"
    follower.close()


def test_a_log_that_cannot_be_read_is_a_sentence(
    site: Site, site_client: FlaskClient, tmp_path: Path
) -> None:
    (tmp_path / "file").touch()
    instance = site.add_instance(InstanceState.PLACING, InstanceState.STARTING)
    with site.database.session() as session:
        session.get_one(Instance, instance).log_file = str(tmp_path / "file" / "1.log")
    headers = {"Authorization": f"Bearer {site.token}"}
    answer = site_client.get(f"/platform/v1/logs/{instance}", headers=headers)
    assert (answer.status_code, "cannot be read: Not a directory" in answer.text) == (503, True)


def test_events_of_one_instance_are_its_own_however_much_happens_elsewhere(
    site: Site, site_client: FlaskClient
) -> None:
    first, second = (site.add_instance(InstanceState.PLACING) for _ in range(2))
    headers = {"Authorization": f"Bearer {site.token}"}
    for instance in (first, second):
        found = site_client.get(f"/platform/v1/events?limit=1&instance={instance}", headers=headers)
        (event,) = found.get_json()["data"]
        assert (event["instance"], event["to"]) == (instance, "placing")
