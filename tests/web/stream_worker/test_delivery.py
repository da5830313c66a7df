"""A whole answer to a client that takes it as it likes."""

from __future__ import annotations

import errno
import selectors
import socket
import time
from collections.abc import Iterator
from contextlib import ExitStack
from types import SimpleNamespace
from typing import Any, cast

import pytest

from trivet_web.stream_worker.client_socket import IO_TIMEOUT_S, LEAST_BYTES_PER_S, ClientSocket
from trivet_web.stream_worker.connection import Connection
from trivet_web.stream_worker.delivery import Deliveries, Delivery, Outbox

PARTS = [bytes([number]) * (256 << 10) for number in range(16)]


class Response:
    """As much of gunicorn's as a delivery needs: bytes go into the outbox as they are."""

    def __init__(self, outbox: Outbox) -> None:
        self.sock = outbox
        self.headers_sent = False

    def write(self, data: bytes) -> None:
        self.headers_sent = True
        self.sock.sendall(data)

    def close(self) -> None:
        self.sock.sendall(b"end")


class Body:
    """Parts, made one at a time."""

    def __init__(self, fails_after: int = len(PARTS), error: Exception | None = None) -> None:
        self._error = error or RuntimeError("the disk is gone")
        self.num_made = 0
        self._fails_after = fails_after

    def __iter__(self) -> Iterator[bytes]:
        for part in PARTS:
            if self.num_made == self._fails_after:
                raise self._error
            self.num_made += 1
            yield part


@pytest.fixture
def ends() -> Iterator[tuple[ClientSocket, socket.socket]]:
    ours, theirs = socket.socketpair()
    client = ClientSocket(fileno=ours.detach())
    client.setblocking(False)
    with client, theirs:
        yield client, theirs


def delivery_of(client: ClientSocket, body: Body) -> Delivery:
    conn = cast("Connection", SimpleNamespace(sock=client))
    return Delivery(conn, Response(Outbox(client)), cast("Any", body), SimpleNamespace)


def test_no_more_is_made_than_the_client_takes_and_it_gets_all(
    ends: tuple[ClientSocket, socket.socket],
) -> None:
    client, theirs = ends
    body = Body()
    delivery = delivery_of(client, body)
    assert not delivery.go_on()
    assert body.num_made < len(PARTS) / 2, "the rest waits for the client"
    taken = b""
    while not delivery.go_on():
        taken += theirs.recv(1 << 20)
    client.close()
    while data := theirs.recv(1 << 20):
        taken += data
    assert taken == b"".join(PARTS) + b"end"


def test_a_client_must_take_something_each_half_minute_and_enough_on_the_whole(
    ends: tuple[ClientSocket, socket.socket],
) -> None:
    client, theirs = ends
    delivery = delivery_of(client, Body())
    assert not delivery.go_on()
    assert 0 < delivery.due_s - time.monotonic() <= IO_TIMEOUT_S
    num_sent = len(theirs.recv(1 << 20))
    assert not delivery.go_on()
    assert delivery._blocked_s is not None
    delivery._blocked_s -= IO_TIMEOUT_S + num_sent / LEAST_BYTES_PER_S + 3600  # it waited for an hour
    assert not delivery.go_on()
    assert delivery.due_s < time.monotonic(), "a byte now and then is not enough"


def deliver(delivery: Delivery, theirs: socket.socket) -> None:
    while not delivery.go_on():
        theirs.recv(1 << 20)


def test_a_body_that_fails_half_way_breaks_the_answer_off(ends: tuple[ClientSocket, socket.socket]) -> None:
    client, theirs = ends
    with pytest.raises(StopIteration):
        deliver(delivery_of(client, Body(fails_after=1)), theirs)
    with pytest.raises(RuntimeError, match="the disk is gone"):  # another answer can be sent still
        delivery_of(client, Body(fails_after=0)).go_on()


def test_a_file_that_cannot_be_read_is_no_client_that_has_gone(
    ends: tuple[ClientSocket, socket.socket], caplog: pytest.LogCaptureFixture
) -> None:
    client, theirs = ends
    with pytest.raises(RuntimeError, match="cannot be made"):  # the client is told: nothing has been sent
        delivery_of(client, Body(fails_after=0, error=OSError(errno.EIO, "a bad block"))).go_on()
    delivery = delivery_of(client, Body(fails_after=1, error=OSError(errno.EIO, "a bad block")))
    with pytest.raises(StopIteration):
        deliver(delivery, theirs)
    assert "a bad block" in caplog.text


def test_of_too_many_slow_clients_the_one_nearest_to_its_end_goes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("trivet_web.stream_worker.delivery.MAX_WAITING", 2)
    closed: list[Connection] = []
    poller = selectors.DefaultSelector()
    deliveries = Deliveries(
        poller, lambda call, *args: call(*args), lambda work: work(), lambda conn, kept: None, closed.append
    )
    with ExitStack() as stack:
        waiting = []
        for due_s in (3.0, 1.0, 2.0):
            pair = socket.socketpair()
            client = stack.enter_context(ClientSocket(fileno=pair[0].detach()))
            stack.enter_context(pair[1])
            client.setblocking(False)
            delivery = delivery_of(client, Body())
            assert not deliveries.begin(delivery)
            delivery.due_s = due_s
            waiting.append(delivery)
        assert closed == [waiting[1].conn]
        deliveries.end_slow(now=2.5)
        assert closed == [waiting[1].conn, waiting[2].conn]
        deliveries.end_slow(now=2.5)
        assert len(closed) == 2
    poller.close()
