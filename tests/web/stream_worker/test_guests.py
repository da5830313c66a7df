"""What a stream in the pump's care sends, and when; the clock is the test's."""

from __future__ import annotations

import socket
import time

from trivet_web.answers.sse import PING, PING_S
from trivet_web.engines.mailbox import Mailbox
from trivet_web.stream_worker.guests import Transfer
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
