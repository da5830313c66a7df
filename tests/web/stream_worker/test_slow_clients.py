"""Clients that do not read, do not send, or do not close hold up nobody else, and cost bounded memory."""

from __future__ import annotations

import os
import re
import select
import signal
import socket
import urllib.request
from collections.abc import Callable
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import TYPE_CHECKING

import psutil
import pytest
from raw_http import chat, get, post, read_answer, read_to_end, read_until

if TYPE_CHECKING:
    from conftest import Eventually, Server, Site

FINISHED = "trivet:request_success_total"
MANY = 64  # completions: 500 tokens of each are 20 MB of events
FEW = 16


def test_a_client_that_stops_reading_is_ended_and_told_so_if_it_reads_again(
    site: Site, start_server: Callable[..., Server], eventually: Eventually, capfd: pytest.CaptureFixture[str]
) -> None:
    site.start_engine("--step-s", "0.005")
    server = start_server()
    worker = psutil.Process(server.process.pid).children()[0]
    slow, good = socket.socket(), server.connect()
    slow.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    with slow, good:
        slow.settimeout(20)
        slow.connect(("127.0.0.1", server.port))
        good.sendall(post("/v1/chat/completions", chat("demo", stream=True, max_tokens=400)))
        data = read_until(good, b"w2 ")
        before_bytes = worker.memory_info().rss
        body = chat("demo", stream=True, max_tokens=480, n=MANY, logprobs=True, top_logprobs=5)
        slow.sendall(post("/v1/chat/completions", body))
        eventually(
            lambda: server.metric(FINISHED) > MANY // 2, within_s=60, what="it is aborted in the engine"
        )
        assert worker.memory_info().rss - before_bytes < 32 << 20
        assert b"[DONE]" in read_until(good, b"\r\n0\r\n\r\n", data), "the other one goes on"
        assert b'"code":"client_too_slow"' in read_until(slow, b"\r\n0\r\n\r\n")
    assert server.get("/health/live")[0] == 200
    said: list[str] = []

    def is_logged() -> bool:
        said.append(capfd.readouterr().err)
        return "client_too_slow" in "".join(said)

    eventually(is_logged, what="it is logged")


def test_a_client_that_hangs_up_after_it_stopped_reading_is_gone_at_once(
    site: Site, start_server: Callable[..., Server], eventually: Eventually
) -> None:
    """Its connection cannot be written, and takes half a minute to be given up."""
    site.start_engine("--step-s", "0.1")
    server = start_server()
    with socket.socket() as slow:
        slow.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        slow.connect(("127.0.0.1", server.port))
        body = chat("demo", stream=True, max_tokens=480, n=FEW, logprobs=True, top_logprobs=5)
        slow.sendall(post("/v1/chat/completions", body))
        worker = psutil.Process(server.process.pid).children()[0]
        eventually(lambda: is_blocked(worker, slow), what="the kernel takes no more")
        assert server.metric(FINISHED) == 0
    eventually(lambda: server.metric(FINISHED) == FEW, what="all is aborted")


def is_blocked(worker: psutil.Process, slow: socket.socket) -> bool:
    """Whether the pump waits for the client's socket to be writable (EPOLLOUT; ERR and HUP always are)."""
    peer = slow.getsockname()
    fds = [one.fd for one in worker.net_connections("tcp") if one.raddr == peer]
    waits = []
    for file in Path(f"/proc/{worker.pid}/fdinfo").iterdir():
        with suppress(FileNotFoundError):  # it was closed meanwhile
            waits.append(file.read_text())
    return any(re.search(rf"^tfd: *{fd} events: +1c ", text, re.MULTILINE) for fd in fds for text in waits)


def test_clients_that_do_not_close_hold_up_nobody(site: Site, start_server: Callable[..., Server]) -> None:
    """gunicorn's main thread waits two seconds for each of them."""
    server = start_server()
    sockets = [server.connect() for _ in range(30)]
    try:
        for sock in sockets:
            sock.sendall(get("/version", "Connection: close\r\n"))
        for sock in sockets:
            assert b'"version"' in read_to_end(sock)
        with urllib.request.urlopen(f"{server.url}/health/live", timeout=10) as answer:
            assert answer.status == 200
    finally:
        for sock in sockets:
            sock.close()


def test_lengths_beyond_all_measure_hold_no_thread(site: Site, start_server: Callable[..., Server]) -> None:
    """A chunk of 2^64 bytes was waited for 30 s, a body of 10^14 five: eight of them were all threads."""
    server = start_server(TRIVET_WEB_THREADS="8")
    head = b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\n"
    chunk = head + b"Transfer-Encoding: chunked\r\n\r\nffffffffffffffff\r\nx"
    length = head + b"Content-Length: 99999999999999\r\n\r\nx"
    with ExitStack() as stack:
        sockets = [stack.enter_context(server.connect()) for _ in range(80)]
        for number, sock in enumerate(sockets):
            sock.sendall((chunk, length)[number % 2])
        with urllib.request.urlopen(f"{server.url}/health/live", timeout=20) as answer:
            assert answer.status == 200
        assert read_to_end(sockets[1]).startswith(b"HTTP/1.1 413")
        assert not select.select(sockets[:1], [], [], 0)[0], "neither has waited for the time of the chunks"
        late = read_to_end(sockets[0])
    assert late.startswith(b"HTTP/1.1 408")
    assert b"was not complete 10 s after it began" in late
    assert b"\r\nX-Request-ID: " in late


def test_bodies_of_strangers_share_a_bounded_memory(
    site: Site, start_server: Callable[..., Server], eventually: Eventually
) -> None:
    """A MB for all, in this server; small requests need none of it."""
    server = start_server("poor")
    part = (
        b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: 700000\r\n\r\n" + b"x" * 600_000
    )
    with server.connect() as first:
        first.sendall(part)
        for _ in range(5):  # each takes rounds of the main loop, and every round reads of this one
            assert server.get("/health/live")[0] == 200
        with server.connect() as second:
            second.sendall(part)
            answer = read_to_end(second)
        assert answer.startswith(b"HTTP/1.1 503")
        assert b"Retry-After: 1" in answer
        assert b"too many large requests" in answer
        assert server.get("/health/live")[0] == 200
        first.sendall(b"x" * 100_000)
        assert read_answer(first)[0].startswith(b"HTTP/1.1 400"), "the first one has its place"

    def is_given_back() -> bool:
        with server.connect() as third:
            third.sendall(part + b"x" * 100_000)
            return read_answer(third)[0].startswith(b"HTTP/1.1 400")

    eventually(is_given_back)


def test_a_new_client_is_heard_though_idle_ones_hold_every_connection(
    site: Site, start_server: Callable[..., Server]
) -> None:
    """This server has 72 connections; the idle one that is oldest makes room."""
    server = start_server("poor", TRIVET_WEB_THREADS="8")
    idle = []
    try:
        for number in range(150):
            sock = server.connect()
            if number % 2:
                sock.settimeout(8)  # those that stall are given up after 10 s
                sock.sendall(get("/version"))
                read_answer(sock)
            idle.append(sock)
        assert server.get("/health/live")[0] == 200
        assert psutil.Process(server.process.pid).children()[0].num_fds() < 150
    finally:
        for sock in idle:
            sock.close()


@pytest.mark.parametrize("kind", ["impatient", "stuck"])
def test_a_worker_that_stands_still_is_replaced(
    kind: str, site: Site, start_server: Callable[..., Server], eventually: Eventually
) -> None:
    """Frozen by a signal, or only its relay by what it hosts."""
    server = start_server(kind)
    master = psutil.Process(server.process.pid)
    first = master.children()[0].pid
    if kind == "impatient":
        os.kill(first, signal.SIGSTOP)
    eventually(lambda: is_replaced(master, first), within_s=60, what="another worker is there")
    assert server.get("/health/live")[0] == 200


def is_replaced(master: psutil.Process, first: int) -> bool:
    workers = [child.pid for child in master.children()]
    return bool(workers) and first not in workers


def test_an_upload_that_was_refused_at_once_can_be_sent_to_its_end(
    site: Site, start_server: Callable[..., Server]
) -> None:
    """A proxy that is cut off while it sends tells its client of an error of its own."""
    server, size = start_server(TRIVET_AUTH="required"), 32 << 20
    with server.connect() as sock:
        sock.sendall(f"POST /v1/files HTTP/1.1\r\nHost: localhost\r\nContent-Length: {size}\r\n\r\n".encode())
        assert read_answer(sock)[0].startswith(b"HTTP/1.1 401")
        for _ in range(size >> 20):
            sock.sendall(bytes(1 << 20))
        assert sock.recv(100) == b"", "it ends in order"


def test_after_its_last_answer_a_client_cannot_send_for_ever(
    site: Site, start_server: Callable[..., Server], eventually: Eventually
) -> None:
    server = start_server()
    with server.connect() as sock:
        sock.sendall(b"GET /health/live HTTP/1.0\r\nHost: localhost\r\n\r\n")
        eventually(lambda: is_cut_off(sock), what="it is cut off")


def is_cut_off(sock: socket.socket) -> bool:
    try:
        sock.sendall(bytes(64 << 10))
    except OSError:
        return True
    return False
