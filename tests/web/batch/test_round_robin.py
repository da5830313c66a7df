"""Batches side by side: none waits for another, none is lost, what was answered stands however it ends."""

from __future__ import annotations

import fcntl
import os
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import msgspec
import pytest
from batch_client import has_ended, line, rows, start, state, store_batch

from trivet_web.batch import online_site, round_robin
from trivet_web.batch.input_file import InputLine
from trivet_web.batch.journal import Journal, JournalUnwritable
from trivet_web.batch.runner import LOCK
from trivet_web.batch.stored_batch import Shelf
from trivet_web.batch.stored_run import BatchRun
from trivet_web.stored_objects import StoredObjects

if TYPE_CHECKING:
    from conftest import Eventually, Site
    from flask.testing import FlaskClient


def leftovers(site: Site) -> list[str]:
    folder = site.settings.paths.stored / "batches"
    return sorted(place.name for place in folder.iterdir() if place.suffix != ".json")


@pytest.mark.parametrize("refused", ["429", "503"])
def test_a_batch_whose_model_cannot_answer_stops_no_other(
    site: Site, site_client: FlaskClient, eventually: Eventually, refused: str
) -> None:
    site.deploy("full")
    site.start_engine("--refuse", refused, name="full")
    site.deploy("gone")
    site.start_engine()
    dead = [start(site_client, *(line(n, model=model) for n in range(40))) for model in ("full", "gone")]
    eventually(lambda: all(state(site_client, one)["status"] == "in_progress" for one in dead))
    good = start(site_client, *map(line, range(40)))
    eventually(has_ended(site_client, good), what="the batch behind them has ended")
    assert all(state(site_client, one)["request_counts"]["failed"] == 0 for one in dead)
    site.start_engine(name="gone")
    eventually(has_ended(site_client, dead[1]), within_s=40, what="the model came")


def test_the_lines_of_other_models_in_the_same_file_go_on(
    site: Site, site_client: FlaskClient, eventually: Eventually
) -> None:
    site.deploy("gone")
    site.start_engine()
    lines = [line(n, model="gone" if n % 2 else "demo") for n in range(100)]
    batch_id = start(site_client, *lines)
    eventually(lambda: state(site_client, batch_id)["request_counts"]["completed"] == 50)
    site.start_engine(name="gone")
    eventually(has_ended(site_client, batch_id), within_s=40)
    assert state(site_client, batch_id)["request_counts"] == {"total": 100, "completed": 100, "failed": 0}


def test_more_batches_than_are_open_take_turns(
    site: Site, site_client: FlaskClient, eventually: Eventually, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(round_robin, "MAX_OPEN", 1)
    site.deploy("gone")
    site.start_engine()
    start(site_client, line(0, model="gone"))
    good = start(site_client, line(0))
    eventually(has_ended(site_client, good), within_s=40)


def test_the_oldest_comes_first(site: Site, site_client: FlaskClient) -> None:
    made = [store_batch(site, site_client, line(0)) for _ in range(5)]
    for age, batch_id in enumerate(made):
        when_s = time.time() - 100 + age
        os.utime(site.settings.paths.stored / "batches" / f"{batch_id}.json", (when_s, when_s))
    assert [batch.id for batch in Shelf.of(site.settings).open_batches()] == made


def test_a_batch_that_has_ended_is_read_once(
    site: Site, site_client: FlaskClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A look takes as long for a month of them as for one."""
    ended, open_ = (store_batch(site, site_client, line(0)) for _ in range(2))
    shelf, read = Shelf.of(site.settings), list[str]()
    shelf.batches.put(ended, msgspec.structs.replace(shelf.batches.get(ended), status="completed"))
    get = StoredObjects.get
    monkeypatch.setattr(StoredObjects, "get", lambda of, one: (read.append(one), get(of, one))[1])
    for _ in range(3):
        assert [batch.id for batch in shelf.open_batches()] == [open_]
    assert sorted(read) == sorted([ended, open_, open_, open_])
    shelf.batches.remove(ended)
    assert [batch.id for batch in shelf.open_batches()] == [open_]
    assert not shelf._ended


def test_a_line_whose_own_deadline_passed_is_not_asked_again(
    site: Site, site_client: FlaskClient, eventually: Eventually
) -> None:
    site.start_engine("--refuse", "503", "--refuse-code", "deadline_passed")
    batch_id = start(site_client, line(0), {"custom_id": "bad"})
    eventually(has_ended(site_client, batch_id), what="the batch has ended")
    assert state(site_client, batch_id)["request_counts"] == {"total": 2, "completed": 0, "failed": 2}


def test_failed_lines_are_counted_while_others_wait(
    site: Site, site_client: FlaskClient, eventually: Eventually
) -> None:
    site.start_engine()
    site.deploy("gone")
    batch_id = start(site_client, line(0), line(1, model="none"), line(2, model="gone"))
    expected = {"total": 3, "completed": 1, "failed": 1}
    eventually(lambda: state(site_client, batch_id)["request_counts"] == expected)


def test_a_batch_expires_and_says_so_of_each_line_that_was_left_out(
    site: Site, open_client: Callable[..., FlaskClient], served_model: Any, eventually: Eventually
) -> None:
    site.deploy("gone")
    site.start_engine()
    client = open_client(site, served_model)
    lines = [line(0), line(1, model="gone")]
    batch_id = store_batch(site, client, *lines, expires_in_s=5)
    client.application.extensions["trivet"].wake_batches()
    eventually(has_ended(client, batch_id, "expired"), what="its time is over")
    batch = state(client, batch_id)
    assert batch["request_counts"] == {"total": 2, "completed": 1, "failed": 1}
    assert [row["custom_id"] for row in rows(client, batch["output_file_id"])] == ["r0"]
    (left_out,) = rows(client, batch["error_file_id"])
    assert left_out["error"]["code"] == "batch_expired"
    assert "before this line was answered" in left_out["error"]["message"], "it was asked"
    eventually(lambda: leftovers(site) == [], what="the journal is gone")


def test_one_that_is_answered_when_its_time_is_over_is_completed(
    site: Site, open_client: Callable[..., FlaskClient], served_model: Any, eventually: Eventually
) -> None:
    """Its process ended between the results and the files; the files made before are the same ones."""
    client = open_client(site, served_model)
    batch_id = store_batch(site, client, line(0), expires_in_s=-10)
    shelf = Shelf.of(site.settings)
    row = {"id": "batch_req_1", "custom_id": "r0", "error": None}
    row["response"] = {"status_code": 200, "request_id": "r", "body": {}}  # type: ignore[assignment]
    shelf.results(batch_id).write_bytes(msgspec.json.encode(row) + b"\n")
    shelf.content(shelf.result_id(batch_id, "output")).write_bytes(b"half of a fi")
    client.application.extensions["trivet"].wake_batches()
    eventually(has_ended(client, batch_id))
    assert len(rows(client, state(client, batch_id)["output_file_id"])) == 1
    assert len(list((site.settings.paths.stored / "files").glob("*.data"))) == 2, "input and output"


def test_cancelling_keeps_what_is_answered_in_the_grace_and_ends_the_rest(
    site: Site, site_client: FlaskClient, eventually: Eventually, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(round_robin, "GRACE_S", 4.0)  # ten times what the short ones take
    engine = site.start_engine("--step-s", "0.02")
    lines = [*(line(n, max_tokens=20) for n in range(8)), *(line(n, max_tokens=480) for n in range(8, 60))]
    batch_id = start(site_client, *lines)
    relay = site_client.application.extensions["trivet"].relay

    def num_running() -> int:
        view = relay.view(engine.instance)
        return 0 if view is None or view.beat is None else int(view.beat.load.num_running)

    eventually(lambda: num_running() >= 16, what="lines are under way")
    site_client.post(f"/v1/batches/{batch_id}/cancel")
    eventually(has_ended(site_client, batch_id, "cancelled"), what="it is cancelled")
    batch = state(site_client, batch_id)
    assert {row["custom_id"] for row in rows(site_client, batch["output_file_id"])} == {
        f"r{n}" for n in range(8)
    }
    bad = rows(site_client, batch["error_file_id"])
    assert {row["error"]["code"] for row in bad} == {"batch_cancelled"}
    asked = [row["custom_id"] for row in bad if "was answered" in row["error"]["message"]]
    assert asked == [f"r{n}" for n in range(8, 8 + len(asked))]
    assert len(asked) >= 16 - 8
    assert [row["custom_id"] for row in bad if "was asked" in row["error"]["message"]] == [
        f"r{n}" for n in range(8 + len(asked), 60)
    ]
    eventually(lambda: num_running() == 0, what="the engine is told")
    assert leftovers(site) == []


def test_what_was_answered_survives_a_failure_of_the_batch(
    site: Site, site_client: FlaskClient, eventually: Eventually, monkeypatch: pytest.MonkeyPatch
) -> None:
    site.start_engine("--step-s", "0.05")
    batch_id = start(site_client, *(line(n, max_tokens=5) for n in range(400)))
    eventually(lambda: state(site_client, batch_id)["request_counts"]["completed"] > 20)

    def broken(answered: object) -> bool:
        raise ValueError("a fault of ours")

    monkeypatch.setattr(online_site, "_is_passing", broken)
    eventually(has_ended(site_client, batch_id, "failed"))
    batch = state(site_client, batch_id)
    assert batch["errors"]["data"][0]["message"] == "internal error; the server's log has it"
    kept = rows(site_client, batch["output_file_id"])
    assert 20 < len(kept) == batch["request_counts"]["completed"] < 400
    assert batch["request_counts"]["total"] == 400
    assert leftovers(site) == []


def test_a_full_disk_only_delays_a_batch(
    site: Site, site_client: FlaskClient, eventually: Eventually, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(round_robin, "AGAIN_S", 0.5)
    site.start_engine()
    is_full, append = threading.Event(), Journal.append

    def full(journal: Journal, *given: Any, **named: Any) -> None:
        if is_full.is_set() and journal.tally.lines >= 3:
            raise JournalUnwritable("No space left on device")
        append(journal, *given, **named)

    monkeypatch.setattr(Journal, "append", full)
    is_full.set()
    batch_id = start(site_client, *map(line, range(50)))
    eventually(lambda: state(site_client, batch_id)["request_counts"]["completed"] == 3)
    assert state(site_client, batch_id)["status"] == "in_progress"
    is_full.clear()
    eventually(has_ended(site_client, batch_id))
    assert [
        row["custom_id"] for row in rows(site_client, state(site_client, batch_id)["output_file_id"])
    ] == [f"r{n}" for n in range(50)]


def test_the_input_of_a_batch_that_has_not_ended_is_not_deleted(
    site: Site, site_client: FlaskClient, eventually: Eventually
) -> None:
    batch_id = start(site_client, line(0))
    input_id = state(site_client, batch_id)["input_file_id"]
    refused = site_client.delete(f"/v1/files/{input_id}")
    assert (refused.status_code, batch_id in refused.get_json()["error"]["message"]) == (409, True)
    site_client.post(f"/v1/batches/{batch_id}/cancel")
    eventually(has_ended(site_client, batch_id, "cancelled"))
    assert site_client.delete(f"/v1/files/{input_id}").status_code == 200


def test_an_input_that_is_gone_is_named_without_a_path(
    site: Site, site_client: FlaskClient, eventually: Eventually
) -> None:
    batch_id = store_batch(site, site_client, line(0))
    input_id = state(site_client, batch_id)["input_file_id"]
    Shelf.of(site.settings).content(input_id).unlink()
    site_client.application.extensions["trivet"].wake_batches()
    eventually(has_ended(site_client, batch_id, "failed"))
    (fault,) = state(site_client, batch_id)["errors"]["data"]
    assert fault["message"] == f"the input file {input_id} does not exist any more; send it again"


def test_a_journal_that_is_held_leaves_the_batch_alone(
    site: Site, site_client: FlaskClient, eventually: Eventually, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(round_robin, "AGAIN_S", 0.2)
    site.start_engine()
    batch_id = store_batch(site, site_client, line(0))
    shelf = Shelf.of(site.settings)
    with shelf.results(batch_id).with_name(f"{batch_id}.results.partial").open("ab") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        good = start(site_client, line(0))
        eventually(has_ended(site_client, good))
        assert state(site_client, batch_id)["status"] == "validating"
    eventually(has_ended(site_client, batch_id))


def test_only_the_holder_of_the_lock_asks(
    site: Site, open_client: Callable[..., FlaskClient], served_model: Any, eventually: Eventually
) -> None:
    site.start_engine()
    with (site.settings.paths.run / LOCK).open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_SH)
        clients = [open_client(site, served_model) for _ in range(2)]
        batches = [start(clients[number % 2], *map(line, range(5))) for number in range(4)]
        deadline_s = time.monotonic() + 2 * round_robin.POLL_S
        while time.monotonic() < deadline_s:
            assert {state(clients[0], one)["status"] for one in batches} == {"validating"}
    for batch_id in batches:
        eventually(has_ended(clients[0], batch_id), within_s=60)
        answered = rows(clients[1], state(clients[1], batch_id)["output_file_id"])
        assert [row["custom_id"] for row in answered] == [f"r{number}" for number in range(5)]


def test_the_lock_is_where_nothing_is_swept(
    site: Site, site_client: FlaskClient, eventually: Eventually
) -> None:
    assert not (site.settings.paths.run / LOCK).is_relative_to(site.settings.paths.stored)
    start(site_client, line(0))
    eventually((site.settings.paths.run / LOCK).exists)


def test_batches_that_cannot_be_seen_stop_none_that_are_open(
    site: Site,
    site_client: FlaskClient,
    eventually: Eventually,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    engine = site.start_engine("--step-s", "0.02")
    batch_id = start(site_client, *(line(n, max_tokens=20) for n in range(200)))
    eventually(lambda: state(site_client, batch_id)["status"] == "in_progress")

    def unseen(shelf: Shelf) -> None:
        raise OSError(24, "Too many open files")

    monkeypatch.setattr(Shelf, "open_batches", unseen)
    process = site_client.application.extensions["trivet"]
    process.wake_batches()
    eventually(lambda: "batches=unseen" in caplog.text, what="it has looked")
    eventually(has_ended(site_client, batch_id))
    view = process.relay.view(engine.instance)
    assert "batches=stopped" not in caplog.text
    assert view.load.num_finished.get("abort", 0) == 0, "no line was asked twice"


def test_what_a_failed_turn_had_open_is_opened_anew(
    site: Site,
    site_client: FlaskClient,
    eventually: Eventually,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Else the next one writes to journals that are closed, and each answer is lost."""
    site.start_engine("--step-s", "0.02")
    broken, settle = threading.Event(), round_robin.RoundRobin._settle

    def once(turns: round_robin.RoundRobin) -> None:
        settle(turns)
        if not broken.is_set():
            broken.set()
            raise ValueError("a fault of ours")

    monkeypatch.setattr(round_robin.RoundRobin, "_settle", once)
    batch_id = start(site_client, *(line(n, max_tokens=10) for n in range(40)))
    eventually(has_ended(site_client, batch_id), within_s=40)
    assert broken.is_set()
    assert "cannot be ended" not in caplog.text, "a journal that is closed"
    assert state(site_client, batch_id)["request_counts"] == {"total": 40, "completed": 40, "failed": 0}
    assert leftovers(site) == []


def test_a_limit_of_threads_only_delays_lines(
    site: Site, site_client: FlaskClient, eventually: Eventually, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(round_robin, "AGAIN_S", 0.2)
    site.start_engine()
    num_refused, start_thread, asked = 0, threading.Thread.start, []

    def limited(thread: threading.Thread) -> None:
        nonlocal num_refused
        if thread.name.startswith("batch-line") and num_refused < 3:
            num_refused += 1
            raise RuntimeError("can't start new thread")
        start_thread(thread)

    def answer(run: BatchRun, one: InputLine) -> Any:
        asked.append(one.index)
        return answer_of(run, one)

    answer_of = BatchRun.answer
    monkeypatch.setattr(BatchRun, "answer", answer)
    monkeypatch.setattr(threading.Thread, "start", limited)
    batch_id = start(site_client, *map(line, range(10)))
    eventually(has_ended(site_client, batch_id))
    assert num_refused == 3
    assert sorted(asked) == list(range(10)), "each line once: the pool has queued what it refused"
    assert state(site_client, batch_id)["request_counts"]["completed"] == 10
