from __future__ import annotations

import os
import socket
import threading
from pathlib import Path

import pytest

from trivet.config import Paths, Settings
from trivet.errors import ConfigError, Conflict
from trivet_supervisor.serve_checks import check_host, serve_lock, with_free_port


@pytest.fixture
def paths(tmp_path: Path) -> Paths:
    paths = Paths(tmp_path)
    paths.create()
    return paths


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "0.0.0.0", "::1"])
def test_addresses_of_this_machine_may_be_listened_on(host: str) -> None:
    if host == "::1" and not has_ipv6():
        pytest.skip("this machine has no IPv6")
    check_host(host)


@pytest.mark.parametrize(
    ("host", "message"),
    [
        ("nosuch.invalid", "host 'nosuch.invalid' cannot be found"),
        ("-1", "host '-1' cannot be found"),
        (
            "203.0.113.7",
            "host 203.0.113.7 cannot be listened on: Cannot assign requested address",
        ),  # RFC 5737
    ],
)
def test_a_host_that_is_another_or_none_is_told_as_that(host: str, message: str) -> None:
    with pytest.raises(ConfigError, match=f"{message}.*--host an address of this machine"):
        check_host(host)


def has_ipv6() -> bool:
    try:
        with socket.socket(socket.AF_INET6) as probe:
            probe.bind(("::1", 0))
    except OSError:
        return False
    return True


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
