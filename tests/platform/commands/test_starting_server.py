from __future__ import annotations

import fcntl
import threading
from pathlib import Path

import pytest

from trivet.commands.starting_server import is_held, wait_for_start
from trivet.config import Paths


class Server:
    """Answers from the time on when `comes_up` is called."""

    def __init__(self) -> None:
        self.num_asked = 0
        self.up = threading.Event()

    def health(self) -> bool:
        self.num_asked += 1
        if self.num_asked == 5:
            self.up.set()
        return self.up.is_set()


def test_a_lock_is_seen_while_it_is_held(tmp_path: Path) -> None:
    file = tmp_path / "serve.lock"
    assert not is_held(file)
    with file.open("w") as holder:
        assert not is_held(file)
        fcntl.flock(holder, fcntl.LOCK_EX)
        assert is_held(file)
    assert not is_held(file)


def test_a_server_that_holds_its_home_is_waited_for(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    paths = Paths(tmp_path)
    paths.create()
    server = Server()
    with paths.lock_file.open("w") as holder:
        fcntl.flock(holder, fcntl.LOCK_EX)
        wait_for_start(server.health, paths)
    assert server.num_asked == 5
    assert capsys.readouterr().err == "waiting for the server, which is starting\n"


def test_no_server_is_not_waited_for_longer_than_asked(tmp_path: Path) -> None:
    times = iter(range(100))
    server = Server()
    wait_for_start(server.health, Paths(tmp_path), 2.5, lambda: float(next(times)))
    assert server.num_asked == 3


def test_a_server_that_answers_costs_nothing(tmp_path: Path) -> None:
    server = Server()
    server.up.set()
    wait_for_start(server.health, Paths(tmp_path), 60)
    assert server.num_asked == 1
