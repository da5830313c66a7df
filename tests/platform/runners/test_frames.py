"""Whole messages over a socket, and the end of the other side."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator

import pytest

from trivet.runners.frames import Frames


@pytest.fixture
def ends() -> Iterator[tuple[Frames, Frames]]:
    pair = tuple(Frames(one) for one in socket.socketpair())
    yield pair[0], pair[1]
    for one in pair:
        one.close()


def test_messages_arrive_whole_and_in_order(ends: tuple[Frames, Frames]) -> None:
    """Also those larger than what a socket holds at once."""
    sent = [b"", b"a", bytes(5 << 20), b"last"]
    sending = threading.Thread(target=lambda: [ends[0].send(each) for each in sent])
    sending.start()
    assert [ends[1].receive() for _ in sent] == sent
    sending.join()


def test_a_waiting_message_is_seen_and_not_taken(ends: tuple[Frames, Frames]) -> None:
    assert not ends[1].has_message(0)
    ends[0].send(b"x")
    assert ends[1].has_message(10)
    assert ends[1].receive() == b"x"


def test_an_end_that_has_gone_is_an_eof_for_the_reader_and_an_error_for_the_writer(
    ends: tuple[Frames, Frames],
) -> None:
    ends[0].close()
    assert ends[1].has_message(10), "there is something to learn"
    with pytest.raises(EOFError):
        ends[1].receive()
    with pytest.raises(OSError, match="Broken pipe"):
        ends[1].send(b"x")


def test_an_end_is_told_from_a_last_message(ends: tuple[Frames, Frames]) -> None:
    assert not ends[1].has_ended()
    ends[0].send(b"-words")
    ends[0].close()
    assert not ends[1].has_ended()
    assert ends[1].begins_with(b"-")
    assert not ends[1].begins_with(b"+")
    assert ends[1].receive() == b"-words"
    assert ends[1].has_ended()
    assert not ends[1].begins_with(b"+")


def test_a_message_that_was_cut_is_an_eof() -> None:
    one, other = socket.socketpair()
    with one, other:
        one.sendall((8).to_bytes(8, "little") + b"half")
        one.shutdown(socket.SHUT_WR)
        with pytest.raises(EOFError):
            Frames(other).receive()


def test_waiting_for_the_end_reads_nothing(ends: tuple[Frames, Frames]) -> None:
    ends[0].send(b"unread")
    waiting = threading.Thread(target=ends[1].wait_for_end)
    waiting.start()
    waiting.join(0.1)
    assert waiting.is_alive(), "a message is no end"
    ends[0].close()
    waiting.join(10)
    assert not waiting.is_alive()
    assert ends[1].receive() == b"unread"
