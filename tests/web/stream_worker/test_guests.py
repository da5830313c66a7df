"""What a stream in the pump's care sends, and when; the clock is the test's."""

from __future__ import annotations

import math
import socket
import time
from collections.abc import Callable
from typing import Any

import pytest

from trivet.messages import FinishReason, Piece, TokenLogprob
from trivet_web.answers.request_log import RequestEnded
from trivet_web.answers.sse import PING, PING_S
from trivet_web.api.whole_answer import Gathering
from trivet_web.engines.engine_link import ReaderTooSlow
from trivet_web.engines.mailbox import WHOLE_CAPACITY_BYTES, Arrival, Mailbox
from trivet_web.stream_worker import pump as pump_module
from trivet_web.stream_worker.guests import Transfer, Waiting
from trivet_web.stream_worker.handover import Parked
from trivet_web.stream_worker.pump import Pump


class Hidden:
    """Something comes all the time, and nothing of it is shown."""

    ping = PING
    is_over = False
    has_more = False

    def __init__(self) -> None:
        self.mailbox = Mailbox()
        self.is_closed = False

    def take(self, timeout_s: float) -> bytes | None:
        return b""

    def close(self) -> None:
        self.is_closed = True


def test_a_stream_of_which_nothing_is_shown_has_a_sign_of_life_in_time() -> None:
    ours, theirs = socket.socketpair()
    pump, ended = Pump(), list[bool]()
    with ours, theirs:
        ours.setblocking(False)
        theirs.setblocking(False)
        transfer = Transfer(pump, Hidden(), ours, lambda work: work(), ended.append, is_chunked=False)
        begun_s = time.monotonic()
        for second in range(int(3 * PING_S) + 2):
            pump.wake(transfer)
            pump.come_round(begun_s + second)
        assert theirs.recv(1000) == 3 * PING
    assert not ended
    pump.close()


class Broken(Hidden):
    """What comes of it cannot be taken."""

    def take(self, timeout_s: float) -> bytes | None:
        raise MemoryError("no memory")


def test_a_stream_that_a_thread_cannot_take_from_leaves_with_its_connection() -> None:
    ours, theirs = socket.socketpair()
    pump, ended, stream, works = Pump(), list[bool](), Broken(), list[Callable[[], None]]()
    with ours, theirs:
        ours.setblocking(False)
        Transfer(pump, stream, ours, works.append, ended.append, is_chunked=True)
        stream.mailbox.fail(RequestEnded(), choice=0)  # what follows may wait
        pump.come_round(time.monotonic())
        assert not ended
        with pytest.raises(MemoryError):
            works.pop()()
        pump.come_round(time.monotonic())
    assert (ended, stream.is_closed) == ([False], True)
    pump.close()


def test_who_was_too_slow_is_in_the_log_also_where_it_has_come_back(caplog: pytest.LogCaptureFixture) -> None:
    ours, theirs = socket.socketpair()
    pump, stream, works = Pump(), Hidden(), list[Callable[[], None]]()
    with ours, theirs:
        ours.setblocking(False)
        Transfer(pump, stream, ours, works.append, lambda _: None, is_chunked=True)
        stream.mailbox.is_overrun = True
        stream.mailbox.fail(ReaderTooSlow(), choice=0)  # a thread takes it, and the client is not waited for
        pump.come_round(time.monotonic())
        works.pop()()
        pump.come_round(time.monotonic())
    assert [each.getMessage().partition("ended=")[2] for each in caplog.records] == [
        "client_too_slow what=its_buffer_is_full"
    ]
    pump.close()


class Whole:
    """A whole answer of one sequence that waits in the pump's care."""

    num_completions = 1

    def __init__(self, pump: Pump) -> None:
        self.answer = self
        self.num_open = 1
        self.mailbox = Mailbox(WHOLE_CAPACITY_BYTES)
        self.gathering = Gathering(self)  # type: ignore[arg-type]  # what it asks of an exchange is here
        self.num_resumed = 0
        parked = Parked(self.mailbox, math.inf, self._resume, lambda: None, self.gathering)  # type: ignore[arg-type]
        self.guest = Waiting(pump, parked, self._resume, lambda: None)

    def _resume(self) -> None:
        self.num_resumed += 1

    def come(self, num_logprobs: int, finish_reason: FinishReason | None = None) -> None:
        likely = [(number, -1.0) for number in range(num_logprobs)]
        logprobs = [TokenLogprob(7, -1.0, 1, likely)] if num_logprobs else None
        piece = Piece(
            "one",
            text=" word",
            token_ids=[7],
            logprobs=logprobs,
            finish_reason=finish_reason,
        )
        assert self.mailbox.put(0, piece, 0.0)

    def read(self, timeout_s: float) -> list[Arrival]:
        found: list[Any] = self.mailbox.read(timeout_s)
        self.num_open -= any(one.piece.finish_reason is not None for one in found)
        return found

    def num_restarts(self, choice: int) -> int:
        return 0


def test_the_largest_of_the_whole_answers_goes_before_the_memory_does(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(pump_module, "MAX_HELD_BYTES", 100_000)
    pump = Pump()
    large, small = Whole(pump), Whole(pump)
    for second in range(60):
        large.come(num_logprobs=20)
        small.come(num_logprobs=0)
        pump.come_round(1.0 + second)
    assert large.num_resumed == 1
    with pytest.raises(RequestEnded, match="stream it, or ask for fewer tokens"):
        large.gathering.take(0.0)
    assert not small.num_resumed
    small.come(0, FinishReason.STOP)
    pump.come_round(70.0)
    assert small.num_resumed == 1
    assert small.gathering.result()[0].text == " word" * 61
    pump.close()
