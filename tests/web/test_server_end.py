"""How the real server ends: told to, over its drain, by the death of its master; and how it begins anew."""

from __future__ import annotations

import signal
import socket
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

import httpx2
import psutil
import pytest
from raw_http import chat, read_until
from raw_http import post as request_bytes

if TYPE_CHECKING:
    from conftest import Eventually, Server, Site

MODEL = "demo"


@pytest.mark.parametrize("kind", ["", "crowded"], ids=["alone", "with new connections"])
def test_sigterm_lets_streams_finish_and_exits_0(
    site: Site, start_server: Callable[..., Server], kind: str
) -> None:
    site.start_engine("--step-s", "0.05")
    server = start_server(kind)
    with server.connect() as sock:
        sock.sendall(request_bytes("/v1/chat/completions", chat(MODEL, stream=True, max_tokens=20)))
        data = read_until(sock, b"w2 ")
        server.process.send_signal(signal.SIGTERM)
        data += read_until(sock, b"\r\n0\r\n\r\n")
    assert b"[DONE]" in data
    assert server.process.wait(20) == 0


def test_stream_longer_than_the_drain_ends_with_an_error_event(
    site: Site, start_server: Callable[..., Server]
) -> None:
    site.start_engine("--step-s", "0.1")
    server = start_server()
    with server.connect() as sock:
        sock.sendall(request_bytes("/v1/chat/completions", chat(MODEL, stream=True, max_tokens=480)))
        read_until(sock, b"w2 ")
        server.process.send_signal(signal.SIGTERM)
        rest = read_until(sock, b"\r\n0\r\n\r\n")
    assert b"shutting down" in rest
    assert b'"code":"unavailable"' in rest
    assert server.process.wait(20) == 0


def test_worker_frees_the_port_when_its_master_is_killed(
    site: Site, start_server: Callable[..., Server], eventually: Eventually
) -> None:
    """The stream goes on while the next master binds; new connections must not wait for its end."""
    site.start_engine("--step-s", "0.1")
    server = start_server(TRIVET_DRAIN_TIMEOUT_S="15")
    with server.connect() as sock:
        sock.sendall(request_bytes("/v1/chat/completions", chat(MODEL, stream=True, max_tokens=60)))
        read_until(sock, b"w2 ")
        server.process.kill()
        server.process.wait()
        eventually(lambda: is_free(server.port), within_s=5, what="the port is free")
        assert b"[DONE]" in read_until(sock, b"\r\n0\r\n\r\n")


def test_worker_whose_master_is_killed_drains_as_when_it_is_told_to(
    site: Site, start_server: Callable[..., Server]
) -> None:
    site.start_engine("--step-s", "0.1")
    server = start_server()
    with server.connect() as sock, server.connect() as asking:
        sock.sendall(request_bytes("/v1/chat/completions", chat(MODEL, stream=True, max_tokens=480)))
        read_until(sock, b"w2 ")
        server.process.kill()
        answer = b""
        while b"shutting down" not in answer:
            asking.sendall(b"GET /health/ready HTTP/1.1\r\nHost: localhost\r\n\r\n")
            answer = read_until(asking, b"}")
        assert answer.startswith(b"HTTP/1.1 503")
        assert b'"code":"unavailable"' in read_until(sock, b"\r\n0\r\n\r\n")


def test_a_reload_cuts_no_stream_and_other_signals_of_the_master_change_nothing(
    site: Site, start_server: Callable[..., Server], eventually: Eventually, capfd: pytest.CaptureFixture[str]
) -> None:
    site.start_engine("--step-s", "0.1")
    server = start_server(TRIVET_DRAIN_TIMEOUT_S="15")
    master = psutil.Process(server.process.pid)
    (old,) = master.children()
    with server.connect() as sock:
        sock.sendall(request_bytes("/v1/chat/completions", chat(MODEL, stream=True, max_tokens=60)))
        read_until(sock, b"w2 ")
        said = ""
        for name in ("SIGTTIN", "SIGTTOU", "SIGUSR2"):
            server.process.send_signal(getattr(signal, name))
            expected = f"signal={name} changes nothing; set web_workers"
            deadline = time.monotonic() + 20
            while expected not in said and time.monotonic() < deadline:
                said += capfd.readouterr().err
                time.sleep(0.01)
            assert expected in said
        assert master.children() == [old]
        server.process.send_signal(signal.SIGHUP)
        eventually(lambda: set(master.children()) - {old}, what="a new worker")
        assert b"[DONE]" in read_until(sock, b"\r\n0\r\n\r\n")
    eventually(lambda: len(master.children()) == 1 and not old.is_running(), what="the old one ends")
    body = {"model": MODEL, "prompt": "x", "max_tokens": 2}

    def answers() -> bool:
        return httpx2.post(f"{server.url}/v1/completions", json=body, timeout=30).status_code == 200

    eventually(answers, what="the new one answers")


def is_free(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
        return True
