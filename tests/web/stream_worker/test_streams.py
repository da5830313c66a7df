"""Streams of the real server: whole, in order with other requests, and the same under another worker."""

from __future__ import annotations

import re
import resource
import socket
import struct
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import psutil
import pytest
from raw_http import chat, events, get, post, read_answer, read_to_end, read_until

if TYPE_CHECKING:
    from conftest import Eventually, Live, Server, Site

PATH = "/v1/chat/completions"
RUNNING = "trivet:num_requests_running"
FINISHED = "trivet:request_success_total"
NUM_STREAMS = 200
FORM = (
    b'--edge\r\nContent-Disposition: form-data; name="purpose"\r\n\r\nbatch\r\n'
    b'--edge\r\nContent-Disposition: form-data; name="file"; filename="f"\r\n\r\nCONTENT\r\n--edge--\r\n'
)


def stream(model: str, max_tokens: int = 5, **fields: object) -> bytes:
    return post(PATH, chat(model, stream=True, max_tokens=max_tokens, **fields))


def contents(body: bytes) -> str:
    chunks = [msgspec.json.decode(event[6:]) for event in events(body)[:-1]]
    deltas = [choice["delta"] for chunk in chunks for choice in chunk["choices"]]
    return "".join(delta.get("content") or "" for delta in deltas)


def test_200_streams_at_once_are_what_gunicorns_own_worker_streams(
    site: Site, start_server: Callable[..., Server]
) -> None:
    """A server joins what it has not sent yet, so the comparison is of streams without such haste."""
    site.start_engine("--step-s", "0.05")
    request = stream("demo", 12, stream_options={"include_usage": True}, logprobs=True)

    plain_server, server = start_server("gthread"), start_server(TRIVET_WEB_THREADS="16")

    def answers() -> list[tuple[list[bytes], list[bytes]]]:
        found = []
        for each in (plain_server, server):
            with each.connect() as sock:
                sock.sendall(request)
                head, body, _ = read_answer(sock)
                found.append((without_ids(head), events(body)))
        return found

    for _ in range(20):  # a busy machine joins now and then
        plain, ours = answers()
        if ours == plain:
            break
    assert ours == plain

    sockets = [server.connect() for _ in range(NUM_STREAMS)]
    for number, sock in enumerate(sockets):
        sock.sendall(stream("demo", 1 + number % 40))
    for number, sock in enumerate(sockets):
        with sock:
            _, body, rest = read_answer(sock)
        assert contents(body) == "".join(f"w{n} " for n in range(1 + number % 40))
        assert (events(body)[-1], rest) == (b"data: [DONE]", b"")


@pytest.mark.parametrize(("step_s", "max_tokens"), [("0.001", 1), ("0.02", 20)])
def test_a_stored_response_is_written_while_other_streams_go_on(
    site: Site, start_server: Callable[..., Server], step_s: str, max_tokens: int
) -> None:
    """By a thread that may wait for the disk, also where the end comes with the beginning."""
    site.start_engine("--step-s", step_s)
    server = start_server("telling", TRIVET_STORE_RESPONSES="true")
    asked = {"model": "demo", "input": "hello", "max_output_tokens": max_tokens, "stream": True}
    with server.connect() as sock:
        for _ in range(5):
            sock.sendall(post("/v1/responses", asked))
            _, body, _ = read_answer(sock)
            assert b"event: response.incomplete" in events(body)[-1]
    threads = (site.settings.paths.stored / "responses/threads").read_text().split()
    assert len(threads) == 5
    assert "relay" not in threads


def without_ids(head: bytes) -> list[bytes]:
    lines = re.sub(rb"(X-Request-ID|Date): [^\r]*", rb"\1", head).split(b"\r\n")
    return sorted(lines)


def test_a_connection_carries_streams_and_other_requests_by_turns(live: Live) -> None:
    served = live.serve()
    with live.server.connect() as sock:
        for number in range(1, 6):
            sock.sendall(stream(served.model, number))
            _, body, rest = read_answer(sock)
            assert (events(body)[-1], rest) == (b"data: [DONE]", b"")
            sock.sendall(get("/version"))
            head, body, rest = read_answer(sock)
            assert head.startswith(b"HTTP/1.1 200")
            assert (b'"version"' in body, rest) == (True, b"")


def test_requests_behind_a_stream_wait_for_their_turn(live: Live) -> None:
    served = live.serve("--step-s", "0.01")
    with live.server.connect() as sock:
        sock.sendall(stream(served.model, 3) + stream(served.model, 4) + get("/version") + get("/hea")[:8])
        _, first, rest = read_answer(sock)
        _, second, rest = read_answer(sock, rest)
        _, third, rest = read_answer(sock, rest)
        assert (contents(first), contents(second)) == ("w0 w1 w2 ", "w0 w1 w2 w3 ")
        assert b'"version"' in third
        sock.sendall(get("/health")[8:])
        assert read_answer(sock, rest)[1] == b'{"status":"ok"}'


def test_the_first_byte_of_a_next_request_holds_no_thread(
    site: Site, start_server: Callable[..., Server]
) -> None:
    server = start_server(TRIVET_WEB_THREADS="8")
    sockets = [server.connect() for _ in range(40)]
    try:
        for sock in sockets:
            sock.sendall(get("/version") + b"G")
        for sock in sockets:
            read_answer(sock)
        assert server.get("/health/live")[0] == 200
    finally:
        for sock in sockets:
            sock.close()


@pytest.mark.parametrize(
    "head",
    [
        b"Transfer-Encoding: chunked\r\n\r\n%x;x=y\r\n%b\r\n0\r\nX-Sum: 1\r\n\r\n",
        b"content-length:%d\r\n\r\n%b",
    ],
    ids=["chunked, with trailers", "length"],
)
def test_a_request_behind_any_form_of_body_is_found(live: Live, head: bytes) -> None:
    served = live.serve()
    body = msgspec.json.encode(chat(served.model, stream=True, max_tokens=2))
    first = f"POST {PATH} HTTP/1.1\r\nHost: localhost\r\n".encode() + head % (len(body), body)
    with live.server.connect() as sock:
        sock.sendall(first + get("/version"))
        _, answer, rest = read_answer(sock)
        assert contents(answer) == "w0 w1 "
        assert b'"version"' in read_answer(sock, rest)[1]


def test_http_1_0_and_connection_close_end_with_the_connection(live: Live) -> None:
    served = live.serve()
    body = chat(served.model, stream=True, max_tokens=3)
    with live.server.connect() as sock:
        sock.sendall(post(PATH, body, version="1.0"))
        head, _, answer = read_to_end(sock).partition(b"\r\n\r\n")
    assert b"chunked" not in head
    assert (contents(answer), events(answer)[-1]) == ("w0 w1 w2 ", b"data: [DONE]")
    with live.server.connect() as sock:
        sock.sendall(post(PATH, body, headers="Connection: close\r\n"))
        answer = read_to_end(sock)
    assert b"\r\nConnection: close\r\n" in answer
    assert answer.endswith(b"data: [DONE]\n\n\r\n0\r\n\r\n")


@pytest.mark.parametrize(
    ("lines", "status"),
    [
        ("Content-Length: 3\r\nContent-Length: 4\r\n\r\nabc", 400),
        ("Content-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", 400),
        ("Content-Length: -3\r\n\r\n", 400),
        ("Content-Length: +3\r\n\r\nabc", 400),
        ("Transfer-Encoding: chunked\r\n\r\nzz\r\n", 400),
        ("Transfer-Encoding: chunked\r\n\r\n-1\r\n", 400),
        ("".join(f"X-{number}: y\r\n" for number in range(120)) + "\r\n", 431),
    ],
)
def test_a_request_of_which_the_end_is_unclear_is_refused_and_closed(
    live: Live, lines: str, status: int
) -> None:
    with live.server.connect() as sock:
        sock.sendall(f"POST {PATH} HTTP/1.1\r\nHost: localhost\r\n{lines}".encode())
        answer = read_to_end(sock)
    assert answer.startswith(b"HTTP/1.1 %d " % status)
    assert answer.count(b"HTTP/1.1") == 1
    assert b'"error"' in answer


def test_a_failure_before_the_first_piece_has_its_own_status(live: Live) -> None:
    served = live.serve("--refuse", "429")
    with live.server.connect() as sock:
        sock.sendall(stream(served.model) + get("/version"))
        head, body, rest = read_answer(sock)
        assert b'"version"' in read_answer(sock, rest)[1]
    assert head.startswith(b"HTTP/1.1 429")
    assert b"\r\nRetry-After: 7" in head
    assert b"\r\nX-Request-ID: " in head
    assert msgspec.json.decode(body)["error"]["code"] == "overloaded"


def test_a_request_is_counted_once_and_with_the_status_that_it_got(
    site: Site, start_server: Callable[..., Server], eventually: Eventually
) -> None:
    site.start_engine()
    server = start_server()
    with server.connect() as sock:
        sock.sendall(stream("demo") + stream("nope"))
        _, _, rest = read_answer(sock)
        read_answer(sock, rest)

    def are_counted_once() -> bool:
        counts = [line for line in server.get("/metrics")[1].decode().splitlines() if PATH in line]
        return all(
            any(status in line and line.endswith((" 1", " 1.0")) for line in counts)
            for status in ('"200"', '"404"')
        )

    eventually(are_counted_once, what="each is counted")


def test_threads_are_free_while_streams_wait_and_flow(
    site: Site, start_server: Callable[..., Server], eventually: Eventually
) -> None:
    """Twenty times as many streams as threads, half of them without a token yet."""
    site.start_engine("--first-s", "60")
    site.deploy("flowing")
    site.start_engine("--step-s", "0.2", name="flowing")
    server = start_server(TRIVET_WEB_THREADS="4")
    sockets = [server.connect() for _ in range(80)]
    try:
        for number, sock in enumerate(sockets):
            sock.sendall(stream("flowing" if number % 2 else "demo", 400))
        eventually(lambda: server.metric(RUNNING) == 80, what="all streams run")
        for sock in sockets[1::2]:
            read_until(sock, b"w1 ")
        assert server.get("/health/live")[0] == 200
    finally:
        for sock in sockets:
            sock.close()
    eventually(lambda: server.metric(RUNNING) == 0, what="all are aborted")


def test_clients_that_do_not_read_a_large_answer_hold_no_thread(live: Live) -> None:
    """More of them than threads; the kernel keeps some 100 kB for each."""
    content = bytes(range(256)) * (4 << 12)
    head, _, tail = FORM.partition(b"CONTENT")
    form = head + content + tail
    with live.server.connect() as sock:
        lines = f"POST /v1/files HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(form)}\r\n"
        sock.sendall(lines.encode() + b"Content-Type: multipart/form-data; boundary=edge\r\n\r\n" + form)
        file = msgspec.json.decode(read_answer(sock)[1])
    asked = get(f"/v1/files/{file['id']}/content")
    with ExitStack() as stack:
        sockets = []
        for _ in range(80):
            sock = stack.enter_context(socket.socket())
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            sock.settimeout(20)
            sock.connect(("127.0.0.1", live.server.port))
            sock.sendall(asked)
            sockets.append(sock)
        for sock in sockets:
            assert sock.recv(1) == b"H", "each is on its way"
        assert live.server.get("/health/live")[0] == 200
        sockets[7].sendall(get("/version"))
        _, body, rest = read_answer(sockets[7], b"H")
        assert body == content, "who reads later has it all"
        assert b'"version"' in read_answer(sockets[7], rest)[1]


def test_a_body_that_nobody_reads_is_no_next_request(live: Live) -> None:
    """Also of an answer that waits for its client: it is larger than what the kernel keeps."""
    bait = b"GET / HTTP/1.1\r\n\r\n"
    head = f"GET /openapi.json HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(bait)}\r\n\r\n"
    with socket.socket() as sock:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        sock.settimeout(20)
        sock.connect(("127.0.0.1", live.server.port))
        sock.sendall(head.encode() + bait)
        data = sock.recv(1)  # it is on its way
        sock.sendall(get("/version"))
        _, document, rest = read_answer(sock, data)
        assert msgspec.json.decode(document)["openapi"] == "3.1.0"
        answer, body, rest = read_answer(sock, rest)
        assert answer.startswith(b"HTTP/1.1 200")
        assert (b'"version"' in body, rest) == (True, b"")


def test_a_lost_engine_is_replaced_for_a_stream_that_waits(live: Live, eventually: Eventually) -> None:
    """None of ten has begun: all go on elsewhere, and a thread waits for the registry."""
    served = live.serve("--first-s", "60")
    sockets = [live.server.connect() for _ in range(10)]
    for sock in sockets:
        sock.sendall(stream(served.model, 3))
    eventually(lambda: live.server.metric(RUNNING, served.model) == 10, what="all wait")
    live.site.start_engine(name=served.model)
    ender = threading.Thread(target=served.engine.kill)
    ender.start()
    for sock in sockets:
        with sock:
            assert contents(read_answer(sock)[1]) == "w0 w1 w2 "
    ender.join()


@pytest.mark.parametrize("phase", ["arriving", "waiting", "flowing", "ending"])
def test_an_engine_that_is_killed_in_any_phase_leaves_no_request_without_an_end(
    live: Live, phase: str, eventually: Eventually
) -> None:
    options = {"flowing": ("--step-s", "0.02"), "ending": ("--step-s", "0.001")}
    served = live.serve(*options.get(phase, ("--first-s", "60")))
    with live.server.connect() as flowing, live.server.connect() as whole:
        flowing.sendall(stream(served.model, 200))
        whole.sendall(post(PATH, chat(served.model, max_tokens=200)))
        data = b""
        if phase == "waiting":
            eventually(lambda: live.server.metric(RUNNING, served.model) == 2, what="both wait")
        elif phase != "arriving":
            data = read_until(flowing, b"w3 " if phase == "flowing" else b"w199 ")
        served.engine.kill()
        head, body, _ = read_answer(flowing, data)
        whole_head, whole_body, _ = read_answer(whole)
    if head.startswith(b"HTTP/1.1 200"):
        assert body.endswith(b"data: [DONE]\n\n") or b'"code":"engine_lost"' in body.split(b"\n\n")[-2]
    else:
        assert head.startswith(b"HTTP/1.1 503"), head
    is_complete = whole_head.startswith(b"HTTP/1.1 200") and b'"completion_tokens":200' in whole_body
    assert is_complete or whole_head.startswith(b"HTTP/1.1 503"), (whole_head, whole_body)


ABORT_GOAL_S = 0.05  # on a busy machine 200 times as long; by itself the stream lasts for 24 s or more


@pytest.mark.parametrize("first_s", ["0", "60"], ids=["while it flows", "before the first token"])
@pytest.mark.parametrize("is_reset", [False, True], ids=["closed", "reset"])
def test_a_client_that_leaves_is_aborted_soon(
    live: Live, tmp_path: Path, first_s: str, is_reset: bool, eventually: Eventually
) -> None:
    """From the close of its socket to the engine's own record; the goal is of `tests/run streams`."""
    aborts = tmp_path / "aborts"
    served = live.serve("--step-s", "0.05", "--first-s", first_s, "--aborts", str(aborts))
    sock = live.server.connect()
    sock.sendall(stream(served.model, 480))
    if first_s == "0":
        read_until(sock, b"w1 ")
    eventually(lambda: live.server.metric(RUNNING, served.model) == 1, what="it runs")
    if is_reset:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    closed_s = time.monotonic()
    sock.close()
    eventually(aborts.exists, what="it is aborted")
    eventually(lambda: aborts.read_text().endswith("\n"), what="the moment is written")
    assert float(aborts.read_text()) - closed_s < 200 * ABORT_GOAL_S


def test_a_worker_without_descriptors_keeps_its_streams_and_answers_again(
    site: Site, start_server: Callable[..., Server]
) -> None:
    site.start_engine("--step-s", "0.05")
    server = start_server()
    (worker,) = psutil.Process(server.process.pid).children()
    with server.connect() as streaming, ExitStack() as stack:
        streaming.sendall(stream("demo", 100))
        data = read_until(streaming, b"w1 ")
        limits = resource.prlimit(worker.pid, resource.RLIMIT_NOFILE)
        free = worker.num_fds() + 10
        resource.prlimit(worker.pid, resource.RLIMIT_NOFILE, (free, limits[1]))
        for _ in range(60):
            stack.enter_context(server.connect()).sendall(b"P")
        assert server.get("/health/live")[0] == 200, "idle connections make room"
        resource.prlimit(worker.pid, resource.RLIMIT_NOFILE, limits)
        assert b"[DONE]" in read_until(streaming, b"\r\n0\r\n\r\n", data)
    assert worker.is_running()
    assert server.get("/version")[0] == 200
