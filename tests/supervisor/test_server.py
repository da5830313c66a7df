from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
import zmq

from trivet.config import Paths
from trivet_supervisor.client import SupervisorClient
from trivet_supervisor.protocol import GetStatus, Request, ShutDown, SupervisorStatus, Wake
from trivet_supervisor.server import Server


@pytest.fixture
def paths(tmp_path_factory: pytest.TempPathFactory) -> Paths:
    paths = Paths(tmp_path_factory.mktemp("s"))
    paths.create()
    return paths


@pytest.fixture
def heard(paths: Paths) -> Iterator[list[Request]]:
    """What a server on another thread was asked."""
    requests: list[Request] = []
    ending = threading.Event()

    def handle(request: Request) -> SupervisorStatus:
        requests.append(request)
        return SupervisorStatus(pid=17, version="1", as_of=0.0, num_followed=2)

    def serve() -> None:
        context: zmq.Context[zmq.Socket[bytes]] = zmq.Context.instance()
        server = Server(context, paths.supervisor_socket())
        bound.set()
        while not ending.is_set():
            server.socket.poll(50)
            server.keep_bound()
            server.serve(handle)
        server.close()

    bound = threading.Event()
    thread = threading.Thread(target=serve)
    thread.start()
    assert bound.wait(30)
    yield requests
    ending.set()
    thread.join(30)


def test_every_request_is_answered_with_the_status(heard: list[Request], paths: Paths) -> None:
    client = SupervisorClient(paths, timeout_s=30)
    answers = [client.wake(), client.status(), client.shut_down(3.0)]
    assert [answer.pid for answer in answers if answer] == [17, 17, 17]
    assert heard == [Wake(), GetStatus(), ShutDown(3.0)]


def test_nonsense_is_no_request_and_harms_nobody(heard: list[Request], paths: Paths) -> None:
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context.instance()
    with context.socket(zmq.DEALER) as socket:
        socket.linger = 1000
        socket.connect(paths.supervisor_socket())
        socket.send(b"\xc1nonsense")
    assert SupervisorClient(paths, timeout_s=30).status() is not None
    assert heard == [GetStatus()]


def test_a_socket_file_that_was_deleted_is_bound_again(heard: list[Request], paths: Paths) -> None:
    file = paths.run / "supervisor.sock"
    for _ in range(2):
        file.unlink()
        deadline_s = time.monotonic() + 30
        while SupervisorClient(paths, timeout_s=1).status() is None:
            assert time.monotonic() < deadline_s
    assert set(heard) == {GetStatus()}


def test_a_supervisor_of_another_version_is_there_and_told_as_that(paths: Paths) -> None:
    """Trivet was upgraded under a parent that runs, and the supervisor came back as the new one."""
    with zmq.Context() as context, context.socket(zmq.ROUTER) as other:
        other.bind(paths.supervisor_socket())

        def answer() -> None:
            frames = other.recv_multipart()
            other.send_multipart([frames[0], msgspec.msgpack.encode({"of": "later"})])

        thread = threading.Thread(target=answer)
        thread.start()
        status = SupervisorClient(paths, timeout_s=30).status()
        thread.join()
    assert status is not None
    assert "another version of Trivet" in status.problem


def test_no_supervisor_is_told_at_once(paths: Paths) -> None:
    assert SupervisorClient(paths, timeout_s=600).status() is None


def test_a_socket_that_a_dead_supervisor_left_is_no_supervisor(paths: Paths) -> None:
    Path(paths.run / "supervisor.sock").touch()
    assert SupervisorClient(paths, timeout_s=0.1).status() is None
