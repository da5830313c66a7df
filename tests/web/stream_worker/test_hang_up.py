from __future__ import annotations

import os
import socket
import threading
from collections.abc import Iterator
from functools import partial

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


def test_the_end_of_a_connection_is_not_told_to_the_next_with_its_number(watcher: HangUpWatcher) -> None:
    """Both ends are events of one round; in between, the second one's number goes to a new connection."""
    gate, one, two, new = (socket.socketpair() for _ in range(4))
    may_go_on, told = threading.Event(), list[int]()

    def replace(other: int) -> None:
        watcher.forget(other)
        os.dup2(new[0].fileno(), other)
        watcher.watch(other, lambda: told.append(other))

    watcher.watch(gate[0].fileno(), lambda: may_go_on.wait(20) and None)
    for this, other in ((one, two), (two, one)):
        watcher.watch(this[0].fileno(), partial(replace, other[0].fileno()))
    for pair in (gate, one, two):
        pair[1].close()
    may_go_on.set()
    expect_to_be_told_once(watcher)
    assert told == []
    new[1].close()
    expect_to_be_told_once(watcher)
    assert len(told) == 1, "it is watched"
    for pair in (gate, one, two, new):
        watcher.forget(pair[0].fileno())
        pair[0].close()


def test_a_request_that_cannot_be_told_keeps_no_other_from_it(
    watcher: HangUpWatcher, caplog: pytest.LogCaptureFixture
) -> None:
    ours, theirs = socket.socketpair()
    with ours:
        watcher.watch(ours.fileno(), lambda: int("no number"))
        theirs.close()
        expect_to_be_told_once(watcher)
        watcher.forget(ours.fileno())
    assert "no number" in caplog.text


def test_forgetting_a_closed_or_unknown_socket_is_harmless(watcher: HangUpWatcher) -> None:
    ours, theirs = socket.socketpair()
    watcher.watch(ours.fileno(), lambda: None)
    fd = ours.fileno()
    ours.close()
    theirs.close()
    watcher.forget(fd)
    watcher.forget(fd)
    expect_to_be_told_once(watcher)
