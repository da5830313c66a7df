"""What requests under way hear of a server that is told to end."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack
from typing import TYPE_CHECKING, cast

import httpx2
import msgspec
import pytest
from raw_http import chat, get, post, read_answer, read_until

from trivet_registry.deployment_changes import Update, sleep_deployment, update_deployment
from trivet_web.web_process import BATCHES_END_S, EXTENSION, SHUTDOWN_NOTICE_S

if TYPE_CHECKING:
    from conftest import Eventually, Server, Site
    from flask.testing import FlaskClient

    from trivet_web.batch.runner import BatchRunner

PATH = "/v1/chat/completions"
RUNNING = "trivet:num_requests_running"


def stream(model: str, max_tokens: int = 5) -> bytes:
    return post(PATH, chat(model, stream=True, max_tokens=max_tokens))


def is_refused(server: Server) -> bool:
    try:
        server.connect().close()
    except ConnectionRefusedError:
        return True
    return False


def test_a_kept_connection_hears_that_a_draining_server_is_not_ready(
    site: Site, start_server: Callable[..., Server], eventually: Eventually
) -> None:
    site.start_engine("--step-s", "0.05")
    server = start_server(TRIVET_DRAIN_TIMEOUT_S="20")
    with server.connect() as streaming, server.connect() as asking:
        streaming.sendall(stream("demo", 100))
        data = read_until(streaming, b"w2 ")
        asking.sendall(get("/health/ready"))
        assert read_answer(asking)[0].startswith(b"HTTP/1.1 200")
        server.process.send_signal(signal.SIGTERM)
        while True:
            asking.sendall(get("/health/ready"))
            head, body, _ = read_answer(asking)
            if head.startswith(b"HTTP/1.1 503"):
                break
        assert b"shutting down" in body
        eventually(lambda: is_refused(server), what="the port is closed")  # none is left waiting at it
        assert b"[DONE]" in read_until(streaming, b"\r\n0\r\n\r\n", data)
    assert server.process.wait(20) == 0


def test_a_request_that_waits_for_its_first_token_is_refused_at_the_end_of_the_drain(
    site: Site, start_server: Callable[..., Server], eventually: Eventually, capfd: pytest.CaptureFixture[str]
) -> None:
    """Of an engine, or of one that is being loaded; a line of a batch waits, too, and holds up no exit."""
    site.start_engine("--first-s", "60")
    site.deploy("asleep")
    with site.database.session() as session:
        update_deployment(session, "asleep", Update(settings={"idle_timeout_s": "60"}))
        sleep_deployment(session, "asleep", "no request for 60 s")
    server = start_server()
    with httpx2.Client(base_url=server.url, timeout=20) as http:
        row = {"custom_id": "1", "method": "POST", "url": PATH, "body": chat("asleep")}
        sent = http.post("/v1/files", data={"purpose": "batch"}, files={"file": msgspec.json.encode(row)})
        http.post(
            "/v1/batches", json={"input_file_id": sent.json()["id"], "endpoint": PATH}
        ).raise_for_status()
    with ExitStack() as stack:
        sockets = [stack.enter_context(server.connect()) for _ in range(3)]
        for sock, request in zip(
            sockets, (stream("demo"), stream("asleep"), post(PATH, chat("asleep"))), strict=True
        ):
            sock.sendall(request)
        eventually(lambda: server.metric(RUNNING) == 1, what="it runs")
        eventually(lambda: num_running(server, site.token) == 4, what="all wait")
        server.process.send_signal(signal.SIGTERM)
        for sock in sockets:
            head, body, _ = read_answer(sock)
            assert head.startswith(b"HTTP/1.1 503")
            assert b"shutting down" in body
    assert server.process.wait(20) == 0
    assert "was sent SIGKILL" not in capfd.readouterr().err, "it has ended by itself"


def test_a_stream_that_waits_with_its_head_ends_with_an_error_event(
    site: Site, start_server: Callable[..., Server]
) -> None:
    site.start_engine("--first-s", "60")
    server = start_server("prompt")
    with server.connect() as sock:
        sock.sendall(stream("demo"))
        head = read_until(sock, b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 200")
        server.process.send_signal(signal.SIGTERM)
        body = read_until(sock, b"\r\n0\r\n\r\n", head.partition(b"\r\n\r\n")[2])
    assert b'data: {"error":' in body
    assert b"shutting down" in body
    assert b"[DONE]" not in body
    assert server.process.wait(20) == 0


class Busy:
    """Batches of which lines are under way until they are ended."""

    is_at_work = True

    def __init__(self) -> None:
        self.is_stopped = False

    def stop(self) -> None:
        self.is_stopped = True

    def join(self, timeout_s: float) -> None:
        time.sleep(min(timeout_s, 0.1))


def test_lines_of_batches_are_awaited_with_signs_of_life_and_not_beyond_the_drain(
    site_client: FlaskClient,
) -> None:
    process, batches, beats = site_client.application.extensions[EXTENSION], Busy(), list[float]()
    process.serve_batches(cast("BatchRunner", batches))
    process.begin_drain(SHUTDOWN_NOTICE_S + BATCHES_END_S + 1.0)
    begun_s = time.monotonic()
    process.end_batches(lambda: beats.append(time.monotonic()))
    assert batches.is_stopped
    assert len(beats) > 1
    assert time.monotonic() - begun_s < 20, "it does not wait for lines that never end"


def num_running(server: Server, token: str) -> int:
    """Of the log of requests: those that wait to be sent, too."""
    found = httpx2.get(f"{server.url}/platform/v1/requests", headers={"Authorization": f"Bearer {token}"})
    return sum(one["status"] == "running" for one in found.json()["data"])


def test_a_drain_begins_where_no_thread_can_be_started(
    site_client: FlaskClient, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The worker would end instead, and with it every stream."""
    process = site_client.application.extensions[EXTENSION]

    def limited(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", limited)
        process.begin_drain(3.0)
    assert process.is_draining
    assert "drain=without_notice" in caplog.text
