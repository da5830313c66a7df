from __future__ import annotations

import socket
import threading
from collections.abc import Iterator

import pytest

from trivet_web.stream_worker.hang_up import HangUpWatcher


@pytest.fixture
def watcher() -> Iterator[HangUpWatcher]:
    made = HangUpWatcher()
    yield made
    made.close()


def expect_to_be_told_once(watcher: HangUpWatcher) -> None:
    ours, theirs = socket.socketpair()
    gone = threading.Event()
    with ours:
        watcher.watch(ours.fileno(), gone.set)
        theirs.sendall(b"pipelined request")
        assert not gone.wait(0.05)
        theirs.close()
        assert gone.wait(10)
        watcher.forget(ours.fileno())


def test_closed_peer_is_told_once(watcher: HangUpWatcher) -> None:
    expect_to_be_told_once(watcher)


def test_forgotten_socket_is_not_told_and_can_be_watched_again(watcher: HangUpWatcher) -> None:
    ours, theirs = socket.socketpair()
    first, second = threading.Event(), threading.Event()
    with ours:
        watcher.watch(ours.fileno(), first.set)
        watcher.forget(ours.fileno())
        watcher.watch(ours.fileno(), second.set)
        theirs.close()
        assert second.wait(10)
        assert not first.is_set()
        watcher.forget(ours.fileno())


def test_forgetting_a_closed_or_unknown_socket_is_harmless(watcher: HangUpWatcher) -> None:
    ours, theirs = socket.socketpair()
    watcher.watch(ours.fileno(), lambda: None)
    fd = ours.fileno()
    ours.close()
    theirs.close()
    watcher.forget(fd)
    watcher.forget(fd)
    expect_to_be_told_once(watcher)
