"""What web processes tell each other of their requests: files that are old, broken or of nobody."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from trivet_web.answers.request_log import DONE, RUNNING, Course, Entry
from trivet_web.answers.shared_requests import (
    ORPHAN_S,
    REMEMBERED_S,
    SharedRequests,
    newest_first,
    request_object,
)


def entry(request_id: str, status: str = RUNNING, at_s: float = 0.0) -> Entry:
    made = Entry(request_id, at_s, 0.0, "demo", "/v1/completions", "x", False, Course(), lambda error: None)
    made.status = status
    return made


def test_others_are_seen_and_ones_own_are_not(tmp_path: Path) -> None:
    first, second = SharedRequests(tmp_path), SharedRequests(tmp_path)
    first.publish([entry("a")])
    assert [one.id for one in second.others()] == ["a"]
    assert list(first.others()) == []
    first.publish([])
    assert list(second.others()) == []


def test_what_a_process_that_ended_was_at_is_left_out(tmp_path: Path) -> None:
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    first = SharedRequests(tmp_path)
    first.publish([entry("a"), entry("b", DONE)])
    (file,) = tmp_path.iterdir()
    file = file.rename(tmp_path / f"{ended.pid}-1.0-0.requests")
    (tmp_path / "1-2.0-broken.requests").write_bytes(b"no MessagePack")
    assert [one.id for one in SharedRequests(tmp_path).others()] == ["b"]
    os.utime(file, (0, time.time() - 2 * REMEMBERED_S))
    assert list(SharedRequests(tmp_path).others()) == []
    assert not file.exists()


def test_a_process_with_the_number_of_one_that_ended_has_none_of_its_requests(tmp_path: Path) -> None:
    SharedRequests(tmp_path).publish([entry("a"), entry("b", DONE)])
    (file,) = tmp_path.iterdir()
    file.rename(tmp_path / f"{os.getpid()}-1.0-0.requests")
    assert [one.id for one in SharedRequests(tmp_path).others()] == ["b"]


def test_an_end_is_told_once_to_who_has_the_request(tmp_path: Path) -> None:
    first, second = SharedRequests(tmp_path), SharedRequests(tmp_path)
    first.ask_for_end("../chosen by a client", "because")
    assert first.wanted_ends(["b"]) == {}
    assert second.wanted_ends(["../chosen by a client"]) == {"../chosen by a client": "because"}
    assert second.wanted_ends(["../chosen by a client"]) == {}
    assert list(tmp_path.iterdir()) == []


def test_two_may_ask_for_one_end_at_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    shared = SharedRequests(tmp_path)
    askers = [threading.Thread(target=shared.ask_for_end, args=("a", "because")) for _ in range(30)]
    for one in askers:
        one.start()
    for one in askers:
        one.join()
    assert caplog.messages == []
    assert shared.wanted_ends(["a"]) == {"a": "because"}
    assert list(tmp_path.iterdir()) == []


def test_an_end_that_nobody_takes_up_is_forgotten(tmp_path: Path) -> None:
    shared = SharedRequests(tmp_path)
    shared.ask_for_end("a", "because")
    (file,) = tmp_path.iterdir()
    os.utime(file, (0, time.time() - 2 * ORPHAN_S))
    assert shared.wanted_ends([]) == {}
    assert list(tmp_path.iterdir()) == []


def test_running_ones_stand_first_and_the_newest_of_each() -> None:
    found = [
        request_object(entry(*given), 1.0)
        for given in (("a", DONE, 3.0), ("b", RUNNING, 1.0), ("c", DONE, 5.0))
    ]
    assert [one.id for one in newest_first(found)] == ["b", "c", "a"]


def test_a_process_alone_writes_nothing() -> None:
    alone = SharedRequests(None)
    alone.publish([entry("a")])
    alone.ask_for_end("a", "because")
    assert (list(alone.others()), alone.wanted_ends(["a"])) == ([], {})
