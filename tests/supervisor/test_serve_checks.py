from __future__ import annotations

import os
import socket
import threading
from pathlib import Path

import pytest

from trivet.config import Paths, Settings
from trivet.errors import ConfigError, Conflict
from trivet_supervisor.serve_checks import serve_lock, with_free_port


@pytest.fixture
def paths(tmp_path: Path) -> Paths:
    paths = Paths(tmp_path)
    paths.create()
    return paths


def test_a_taken_port_is_told_before_anything_starts() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(ConfigError, match=rf"port {port}.*--port"):
            with_free_port(Settings(port=port))


def test_a_port_that_is_about_to_be_free_is_waited_for() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        leaving = threading.Timer(0.3, taken.close)
        leaving.start()
        assert with_free_port(Settings(port=port), patience_s=60).port == port
        leaving.join(60)


def test_port_0_becomes_a_free_one() -> None:
    assert with_free_port(Settings(port=0)).port > 0


def test_a_second_serve_is_refused_and_the_first_named(paths: Paths) -> None:
    with (
        serve_lock(paths),
        pytest.raises(Conflict, match=rf"pid {os.getpid()}"),
        serve_lock(paths),
    ):
        pass
    with serve_lock(paths):  # free again
        pass
