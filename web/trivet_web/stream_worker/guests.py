"""The two kinds of requests that the pump serves: one that waits for its engine, and a stream on its way."""

from __future__ import annotations

import logging
import socket
import time
from collections.abc import Callable
from functools import partial

from trivet_web.answers.sse import PING_S
from trivet_web.stream_worker.client_socket import IO_TIMEOUT_S
from trivet_web.stream_worker.handover import ByteStream, Parked
from trivet_web.stream_worker.pump import SEND, TURN, WAKE, Guest, Next, Pump

logger = logging.getLogger(__name__)
_LAST_CHUNK = b"0\r\n\r\n"

Run = Callable[[Callable[[], None]], None]  # by a thread that may wait


class Waiting(Guest):
    """Nothing has been answered. It leaves when there is something to answer, or nobody to answer to."""

    def __init__(self, pump: Pump, parked: Parked, resume: Callable[[], None], gone: Callable[[], None]):
        """Args: one of `resume` and `gone` is called, once, and must not wait."""
        super().__init__(parked.until_s)
        self._parked = parked
        self._resume = resume
        self._gone = gone
        # In this order: once woken it may have left, and somebody else listens.
        parked.mailbox.listen(partial(pump.wake, self))
        pump.wake(self)

    @property
    def held_bytes(self) -> int:
        return self._parked.gatherer.kept_bytes if self._parked.gatherer else 0

    def give_way(self) -> bool:
        if self._parked.gatherer is None:
            return False
        logger.warning("ended=too_large what=answers_hold_too_much")
        self._parked.gatherer.give_up()
        return True

    def turn(self, now: float) -> Next:
        mailbox, gatherer = self._parked.mailbox, self._parked.gatherer
        if now >= self.due_s or mailbox.is_abandoned or mailbox.may_wait:
            return Next.NOTHING
        if gatherer is None:
            return Next.NOTHING if mailbox.num_unread else WAKE
        if gatherer.take_all():
            return Next.NOTHING
        return TURN if mailbox.num_unread else WAKE

    def leave(self) -> None:
        if self._parked.mailbox.is_abandoned:
            self._parked.close()
            self._gone()
        else:
            self._resume()


class Transfer(Guest):
    """A body on its way to a client.

    What the client does not take stays in the mailbox, whose bound ends the engine's part: beside it there is
    one write. A client that then takes nothing for `IO_TIMEOUT_S` loses its connection.
    """

    __slots__ = (
        *("_pump", "_stream", "_mailbox", "_client", "_run", "_on_end", "_is_chunked", "_unsent", "_brought"),
        *("_is_blocked", "_is_away", "_is_broken", "_is_complete", "_has_told"),
    )

    def __init__(
        self,
        pump: Pump,
        stream: ByteStream,
        client: socket.socket,
        run: Run,
        on_end: Callable[[bool], None],
        *,
        is_chunked: bool,
        unsent: bytes = b"",
    ) -> None:
        """The head has been sent, but for what is left of it in `unsent`. The socket does not block.

        Args:
            run: has something done by a thread that may wait.
            on_end: called once with whether the client has everything; must not wait.
            is_chunked: else the end of the connection is the end of the body (HTTP/1.0).
        """
        super().__init__(time.monotonic() + PING_S)
        self._pump = pump
        self._stream = stream
        self._mailbox = stream.mailbox
        self._client = client
        self._run = run
        self._on_end = on_end
        self._is_chunked = is_chunked
        self._unsent = unsent
        self._is_blocked = False
        self._is_away = False  # a thread takes from the stream
        self._is_broken = False  # it could not
        self._brought: bytes | None = None  # what it took
        self._is_complete = False
        self._has_told = False  # that the client is too slow
        stream.mailbox.listen(partial(pump.wake, self))
        pump.wake(self)  # for the first time, so that it is a guest

    def fileno(self) -> int:
        return self._client.fileno()

    @property
    def held_bytes(self) -> int:
        return self._stream.mailbox.unread_bytes

    def give_way(self) -> bool:
        """Only where its client does not read."""
        if self._is_blocked:
            logger.warning("ended=client_too_slow what=answers_hold_too_much")
        return self._is_blocked

    def on_writable(self) -> None:
        self._is_blocked = False

    def turn(self, now: float) -> Next:
        if self._mailbox.is_overrun and not self._has_told:  # also where its client has come back since
            self._has_told = True
            logger.warning("%s ended=client_too_slow what=its_buffer_is_full", self._stream)
        if self._is_away:
            return WAKE
        if self._mailbox.is_abandoned or self._is_broken:
            return Next.NOTHING
        if self._is_blocked:
            return self._wait_for_client(now)
        if self._unsent:
            return SEND
        data, self._brought = self._brought, None
        if data is None and self._mailbox.may_wait:
            self._is_away = True
            self._run(self._take_elsewhere)
            return WAKE
        if data is None:
            data = self._stream.take(0.0)
        if not data and not self._stream.is_over:  # what came may make no event
            if now < self.due_s:
                return TURN if self._stream.has_more else WAKE
            data = self._stream.ping
        self._unsent = self._framed(data or b"")
        return SEND

    def leave(self) -> None:
        self._stream.mailbox.listen(None)
        self._stream.close()  # before the socket is used for the next request
        self._on_end(self._is_complete)

    def _take_elsewhere(self) -> None:
        try:
            self._brought = self._stream.take(0.0) or b""
        except BaseException:  # which it never raises; else nobody would wake this stream again
            self._is_broken = True
            raise
        finally:
            self._is_away = False
            self._pump.wake(self)

    def _framed(self, data: bytes) -> bytes:
        if not self._is_chunked:
            return data
        chunk = b"%x\r\n%b\r\n" % (len(data), data) if data else b""
        return chunk + _LAST_CHUNK if self._stream.is_over else chunk

    def send(self, now: float) -> Next:
        try:
            sent = self._client.send(self._unsent) if self._unsent else 0
        except BlockingIOError:
            sent = 0
        except OSError:  # it has gone
            return Next.NOTHING
        if sent < len(self._unsent):
            self._unsent = self._unsent[sent:]
            self._is_blocked = True
            self.due_s = now + IO_TIMEOUT_S
            return Next.WRITABLE
        self._unsent = b""
        self.due_s = now + PING_S
        if self._stream.is_over:
            self._is_complete = True
            return Next.NOTHING
        return TURN if self._stream.has_more else WAKE

    def _wait_for_client(self, now: float) -> Next:
        if now < self.due_s:
            return Next.WRITABLE
        logger.warning("%s ended=client_too_slow what=took_nothing_for_%.0f_s", self._stream, IO_TIMEOUT_S)
        return Next.NOTHING
