"""A whole answer to a client that takes it as it likes."""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any, cast

import pytest

from trivet_web.stream_worker.client_socket import IO_TIMEOUT_S, LEAST_BYTES_PER_S, ClientSocket
from trivet_web.stream_worker.connection import Connection
from trivet_web.stream_worker.delivery import Delivery, Outbox

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

    def __init__(self, fails_after: int = len(PARTS)) -> None:
        self.num_made = 0
        self._fails_after = fails_after

    def __iter__(self) -> Iterator[bytes]:
        for part in PARTS:
            if self.num_made == self._fails_after:
                raise RuntimeError("the disk is gone")
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
