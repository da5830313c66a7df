from __future__ import annotations

import os
import socket
import stat
from pathlib import Path

import pytest

from trivet.config import Paths, Settings
from trivet.errors import ConfigError, Conflict
from trivet_supervisor.serve_checks import (
    check_address,
    is_loopback,
    management_token,
    serve_lock,
    with_free_port,
)


@pytest.fixture
def paths(tmp_path: Path) -> Paths:
    paths = Paths(tmp_path)
    paths.create()
    return paths


@pytest.mark.parametrize("host", ["127.0.0.1", "127.9.9.9", "::1", "[::1]", "localhost"])
def test_loopback_needs_no_consent(host: str) -> None:
    assert is_loopback(host)
    check_address(Settings(host=host))


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.168.1.4", "example.org"])
def test_other_addresses_need_consent_and_the_reason_is_told(host: str) -> None:
    with pytest.raises(ConfigError, match=r"in the clear.*--insecure"):
        check_address(Settings(host=host))
    check_address(Settings(host=host, insecure=True))


def test_a_taken_port_is_told_before_anything_starts() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(ConfigError, match=rf"port {port}.*--port"):
            with_free_port(Settings(port=port))


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


def test_the_token_is_made_once_and_closed_to_others(paths: Paths) -> None:
    token = management_token(paths)
    assert len(token) == 43, "256 bits in base 64"
    assert management_token(paths) == token
    assert stat.S_IMODE(paths.token_file.stat().st_mode) == 0o600
