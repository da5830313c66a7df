"""The real server (gunicorn, our worker, the relay) in front of fake engine processes."""

from __future__ import annotations

import http.client
import re
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from typing import TYPE_CHECKING

import msgspec
import pytest
from raw_http import chat, read_until
from raw_http import post as request_bytes

from trivet_registry.instances_store import update_instance

if TYPE_CHECKING:
    from conftest import Eventually, Live, Server, Site

MODEL = "demo"
RUNNING = "trivet:num_requests_running"
FINISHED = "trivet:request_success_total"


def post(server: Server, path: str, body: object) -> tuple[int, bytes]:
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=30)
    try:
        connection.request("POST", path, msgspec.json.encode(body), {"Content-Type": "application/json"})
        response = connection.getresponse()
        return response.status, response.read()
    finally:
        connection.close()


def test_tokens_are_streamed_as_they_come(live: Live) -> None:
    served = live.serve("--step-s", "0.05")
    with live.server.connect() as sock:
        sock.sendall(request_bytes("/v1/chat/completions", chat(served.model, stream=True, max_tokens=400)))
        first = read_until(sock, b"w1 ")
    assert b'"w100 "' not in first
    assert b"text/event-stream" in first


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("first_s", ["0", "60"])
def test_client_that_hangs_up_is_aborted_in_the_engine(
    live: Live, stream: bool, first_s: str, eventually: Eventually
) -> None:
    """The goal is a second; by itself the request would last for 48 s or more."""
    served = live.serve("--step-s", "0.1", "--first-s", first_s)
    server = live.server
    with server.connect() as sock:
        sock.sendall(request_bytes("/v1/chat/completions", chat(served.model, stream=stream, max_tokens=480)))
        if stream and first_s == "0":
            read_until(sock, b"w2 ")
        eventually(lambda: server.metric(RUNNING, served.model) == 1, what="the request runs")
    eventually(lambda: server.metric(FINISHED, served.model) == 1, what="it is aborted")
    assert server.metric(RUNNING, served.model) == 0


def test_killed_engine_ends_a_stream_with_an_error_event(live: Live) -> None:
    served = live.serve("--step-s", "0.02")
    with live.server.connect() as sock:
        sock.sendall(request_bytes("/v1/chat/completions", chat(served.model, stream=True, max_tokens=480)))
        read_until(sock, b"w3 ")
        served.engine.kill()
        rest = read_until(sock, b"\r\n0\r\n\r\n")
    assert b'data: {"error":{"message":"instance ' in rest
    assert b" ended while " in rest, "seen by its connection, not by its silence"
    assert b'"code":"engine_lost"' in rest
    assert b"[DONE]" not in rest
    status, body = post(live.server, "/v1/chat/completions", chat(served.model))
    assert status == 503
    assert b"ended" in body


def test_readiness_tells_the_truth_when_the_last_engine_dies(
    site: Site, start_server: Callable[..., Server], eventually: Eventually
) -> None:
    engine = site.start_engine()
    server = start_server()
    eventually(lambda: server.get("/health/ready")[0] == 200, what="it is ready")
    # Only a beat makes the engine known; the registry's word alone counts until then.
    eventually(lambda: b"num_requests_running{" in server.get("/metrics")[1], what="the engine is seen")
    engine.kill()
    eventually(lambda: server.get("/health/ready")[0] == 503, what="it is not ready")
    assert b"ended" in server.get("/health/ready")[1]
    assert server.get("/health/live")[0] == 200


def test_killed_engine_ends_a_whole_request_with_503(live: Live, eventually: Eventually) -> None:
    served = live.serve("--first-s", "60")
    answers: list[tuple[int, bytes]] = []
    ask = partial(post, live.server, "/v1/chat/completions", chat(served.model))
    thread = threading.Thread(target=lambda: answers.append(ask()))
    thread.start()
    eventually(lambda: live.server.metric(RUNNING, served.model) == 1, what="the request runs")
    served.engine.kill()
    thread.join(30)
    assert answers[0][0] == 503
    assert b"engine_lost" in answers[0][1]


def test_request_without_a_token_goes_on_with_another_replica(live: Live, eventually: Eventually) -> None:
    served = live.serve("--first-s", "60")
    with live.server.connect() as sock:
        sock.sendall(request_bytes("/v1/chat/completions", chat(served.model, stream=True, max_tokens=3)))
        eventually(lambda: live.server.metric(RUNNING, served.model) == 1, what="the request runs")
        live.site.start_engine(name=served.model)
        served.engine.kill()
        answer = read_until(sock, b"[DONE]")
    assert b"error" not in answer


def test_stalled_connections_do_not_hold_up_health(site: Site, start_server: Callable[..., Server]) -> None:
    server = start_server(TRIVET_WEB_THREADS="16")
    half_a_body = b"POST /v1/completions HTTP/1.1\r\nHost: a\r\nContent-Length: 100\r\n\r\n{"
    stalled = []
    for data in [b"P"] * 40 + [half_a_body] * 40 + [b""] * 40:
        sock = server.connect()
        sock.sendall(data)
        stalled.append(sock)
    try:
        times = []
        for _ in range(20):
            begun_s = time.monotonic()
            assert server.get("/health")[0] == 200
            times.append(time.monotonic() - begun_s)
        # The goal is 0.1 s; this is to find a hang on a busy machine.
        assert sorted(times)[10] < 1.0
    finally:
        for sock in stalled:
            sock.close()


def test_many_requests_on_one_connection_each_get_their_own_answer(live: Live) -> None:
    served, server = live.serve(), live.server
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=20)
    connection.connect()
    sock = connection.sock
    for number in range(1, 30):
        body = {"model": served.model, "prompt": "x", "max_tokens": number}
        connection.request("POST", "/v1/completions", msgspec.json.encode(body))
        answer = msgspec.json.decode(connection.getresponse().read())
        assert answer["usage"]["completion_tokens"] == number
        assert connection.sock is sock, "the connection was not kept"
    connection.close()


def test_pipelined_requests_are_answered_in_order(live: Live) -> None:
    with live.server.connect() as sock:
        sock.sendall(b"GET /version HTTP/1.1\r\nHost: localhost\r\n\r\n" * 2 + b"GET /health HT")
        data = b""
        while data.count(b"200 OK") < 2:
            data += sock.recv(65536)
        sock.sendall(b"TP/1.1\r\nHost: localhost\r\n\r\n")
        while b'"status"' not in data:
            data += sock.recv(65536)
    assert data.index(b'"version"') < data.index(b'"status"')


def test_chunked_body_and_expect_continue_are_read(live: Live) -> None:
    served, server = live.serve(), live.server
    body = msgspec.json.encode({"model": served.model, "prompt": "x", "max_tokens": 2})
    head = b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\n"
    with server.connect() as sock:
        sock.sendall(head + b"Transfer-Encoding: chunked\r\n\r\n%x\r\n" % len(body) + body)
        sock.sendall(b"\r\n0\r\n\r\n")
        assert b"w0 w1" in read_until(sock, b"usage")
    with server.connect() as sock:
        sock.sendall(head + b"Expect: 100-continue\r\nContent-Length: %d\r\n\r\n" % len(body))
        assert read_until(sock, b"\r\n\r\n").startswith(b"HTTP/1.1 100")
        sock.sendall(body)
        assert b"w0 w1" in read_until(sock, b"usage")


def test_body_over_the_limit_is_413_and_the_client_sees_it(live: Live) -> None:
    with live.server.connect() as sock:
        large = request_bytes("/v1/chat/completions", chat(MODEL, user="x" * (10 << 20)))
        head, body = large.split(b"\r\n\r\n")
        sock.sendall(head + b"\r\n\r\n")
        assert live.server.get("/health")[0] == 200  # the head has been read by now, and none of the body
        sock.sendall(body)
        answer = read_until(sock, b"request_too_large")
        assert answer.startswith(b"HTTP/1.1 413")
        sock.settimeout(4)  # a server that waits for the swallowed rest takes 5 s
        while sock.recv(65536):
            pass


@pytest.mark.parametrize(
    ("request_bytes", "status", "code"),
    [
        (b"no request\r\n\r\n", 400, "bad_request"),
        (b"GET / HTTP/1.1\r\nX Y: 1\r\n\r\n", 400, "bad_request"),
        (b"GET /" + b"x" * 5000 + b" HTTP/1.1\r\n\r\n", 414, "request_uri_too_long"),
        (b"GET / HTTP/1.1\r\nX: " + b"x" * 9000 + b"\r\n\r\n", 431, "request_header_fields_too_large"),
        (b"POST / HTTP/1.1\r\nTransfer-Encoding: br\r\n\r\n", 501, "not_implemented"),
    ],
)
def test_broken_http_is_an_error_object(live: Live, request_bytes: bytes, status: int, code: str) -> None:
    with live.server.connect() as sock:
        sock.sendall(request_bytes)
        head, body = read_until(sock, b"}}").split(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 %d " % status)
    assert b"Content-Type: application/json" in head
    assert re.search(rb"\r\nX-Request-ID: [0-9a-f]{24}\r\n", head)
    error = msgspec.json.decode(body)["error"]
    assert (error["type"], error["code"]) == ("invalid_request_error", code)
    assert "no HTTP request that can be read: " in error["message"]


def test_several_workers_sum_their_counts(
    site: Site, start_server: Callable[..., Server], eventually: Eventually
) -> None:
    site.start_engine()
    server = start_server(TRIVET_WEB_WORKERS="2")
    for _ in range(12):
        assert post(server, "/v1/completions", {"model": MODEL, "prompt": "x", "max_tokens": 2})[0] == 200
    count = "trivet:time_to_first_token_seconds_count"
    # The other process writes its totals once a second.
    eventually(lambda: server.metric(count) == 12, what="both processes' requests are counted")


def test_only_some_threads_are_for_inference(
    site: Site, start_server: Callable[..., Server], eventually: Eventually
) -> None:
    """Of 8 threads 4 may wait for embeddings, and none waits for a whole answer."""
    site.start_engine("--first-s", "60")
    server = start_server(TRIVET_WEB_THREADS="8")
    texts = {"model": MODEL, "input": "x"}
    with ExitStack() as stack:
        for number in range(24):
            sock = stack.enter_context(server.connect())
            path, body = ("/v1/embeddings", texts) if number < 4 else ("/v1/chat/completions", chat(MODEL))
            sock.sendall(request_bytes(path, body))
        eventually(lambda: server.metric(RUNNING) == 24, what="all requests run")
        status, refused = post(server, "/v1/embeddings", texts)
        assert status == 429
        assert b"web_threads" in refused
        assert server.get("/health")[0] == 200
    eventually(lambda: server.metric(RUNNING) == 0, what="all are aborted")


def test_followed_log_shows_new_lines(live: Live) -> None:
    served = live.serve()
    name = served.engine.instance
    file = live.site.settings.paths.logs / f"{name}-1.log"
    file.write_text("old\n")
    with live.site.database.session() as session:
        update_instance(session, name, attempt=1, log_file=str(file))
    head = f"GET /platform/v1/logs/{name}?follow=1 HTTP/1.1\r\nHost: localhost\r\n"
    with live.server.connect() as sock:
        sock.sendall(f"{head}Authorization: Bearer {live.site.token}\r\n\r\n".encode())
        read_until(sock, b"old\n")
        with file.open("a") as log:
            log.write("new\n")
        read_until(sock, b"new\n")


@pytest.mark.parametrize(
    ("soft", "hard", "connections"), [(256, 2000, 2000 - 256), (300, 300, 150), (256, 20_000, 4096)]
)
def test_connections_stay_below_the_limit_of_open_files(soft: int, hard: int, connections: int) -> None:
    """gunicorn's worker ends, with all its streams, at the first connection that gets no descriptor."""
    code = (
        "import resource; from trivet_web.server import max_connections; "
        f"resource.setrlimit(resource.RLIMIT_NOFILE, ({soft}, {hard})); print(max_connections())"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert int(done.stdout) == connections


def test_a_web_process_starts_without_the_libraries_of_pulls_and_bundles() -> None:
    """They take a tenth of its start, and most processes never bring a model."""
    code = (
        "import sys, trivet_web.__main__;"
        "print([m for m in ('httpx2', 'anyio', 'cryptography', 'torch') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
