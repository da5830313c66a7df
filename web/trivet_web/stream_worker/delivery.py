"""A whole answer on its way to a client that may be slow: a thread works on it while the client takes it.

The main thread's poller waits for the client's socket, as it does for requests that come in pieces.
"""

from __future__ import annotations

import logging
import selectors
import time
from collections import deque
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

from trivet_web.stream_worker.client_socket import IO_TIMEOUT_S, LEAST_BYTES_PER_S, ClientSocket
from trivet_web.stream_worker.connection import Connection

logger = logging.getLogger(__name__)
FILE_BLOCK_BYTES = 256 << 10  # gunicorn's are 8 KiB
JOINED_BYTES = 64 << 10
SENT_BYTES = 64 << 10  # at once: of what TLS could send in part it tells nothing
MAX_WAITING = 1024  # each may hold a file open


class Outbox:
    """What gunicorn's `Response` writes, as a socket takes it: what the client does not take is kept.

    Its socket does not block.
    """

    def __init__(self, client: ClientSocket) -> None:
        self._client = client
        self._parts: deque[bytes | memoryview] = deque()
        self.num_sent = 0  # bytes

    def sendall(self, data: bytes) -> None:
        """Keep it until `flush`: a head goes with its body."""
        if self._parts and len(self._parts[-1]) + len(data) <= JOINED_BYTES:
            data = bytes(self._parts.pop()) + data
        self._parts.append(data)

    def flush(self) -> bool:
        """Whether the client has taken everything. Raises: OSError where it has gone."""
        while self._parts:
            part = self._parts.popleft()
            try:
                sent = self._client.send(memoryview(part)[:SENT_BYTES])
            except BlockingIOError:
                sent = 0
            self.num_sent += sent
            if sent < len(part):  # of the largest answers a copy each time would take minutes
                self._parts.appendleft(memoryview(part)[sent:])
            if not sent:
                return False
        return True

    def take_rest(self) -> bytes:
        """What has not been sent, for somebody else to send."""
        rest = b"".join(self._parts)
        self._parts.clear()
        return rest


class Delivery:
    """Of one thread at a time; `close` at the end, whatever happened."""

    def __init__(self, conn: Connection, response: Any, body: Iterable[bytes], file_wrapper: type) -> None:
        """Args: response: gunicorn's, which writes into an `Outbox`."""
        if isinstance(body, file_wrapper):
            body.blksize = FILE_BLOCK_BYTES  # type: ignore[attr-defined]  # of gunicorn's wrapper
        self.conn = conn
        self.response = response
        self._outbox: Outbox = response.sock
        self._body = body
        self._items = iter(body)
        self._is_whole = False  # everything has been written into the outbox
        self._waited_s = 0.0  # for the client
        self._blocked_s: float | None = None  # CLOCK_MONOTONIC, since when it takes nothing
        self.due_s = 0.0  # CLOCK_MONOTONIC: the client must have taken something, or it is dropped

    def go_on(self) -> bool:
        """Write until the client takes no more. Returns: whether it has everything.

        Raises: OSError where it has gone; RuntimeError for what the body raises; StopIteration where that
            broke off an answer of which a part is on its way, since no other can be sent any more.
        """
        if self._blocked_s is not None:
            self._waited_s += time.monotonic() - self._blocked_s
            self._blocked_s = None
        while self._outbox.flush():
            if self._is_whole:
                return True
            self._write_next()
        self._blocked_s = now = time.monotonic()
        left_s = IO_TIMEOUT_S + self._outbox.num_sent / LEAST_BYTES_PER_S - self._waited_s
        self.due_s = now + min(IO_TIMEOUT_S, left_s)
        return False

    def close(self) -> None:
        """The body is not needed any more."""
        if hasattr(self._body, "close"):
            self._body.close()

    def _write_next(self) -> None:
        try:
            item = next(self._items, None)
        except Exception as error:
            if not self.response.headers_sent:  # no OSError: those are of the client's socket
                raise RuntimeError(f"the answer cannot be made: {error}") from error
            logger.exception("the answer breaks off")
            raise StopIteration from None
        if item is None:
            self.response.close()
            self._is_whole = True
        else:
            self.response.write(item)


class Deliveries:
    """Those that wait for their clients. Of the main thread, but for what says otherwise."""

    def __init__(
        self,
        poller: selectors.BaseSelector,
        defer: Callable[..., None],
        run: Callable[[Callable[[], None]], None],
        finish: Callable[[Connection, bool], None],
        close: Callable[[Connection], None],
    ) -> None:
        """Args:

        defer: have the main thread call something.
        run: have a thread of the pool call something.
        finish: the answer is over; whether the connection is kept. Called by the main thread.
        close: the connection is given up. Called by the main thread.
        """
        self._poller = poller
        self._defer = defer
        self._run = run
        self._finish = finish
        self._close = close
        self._waiting: set[Delivery] = set()

    def begin(self, delivery: Delivery) -> bool:
        """Whether the client has it all; else it goes on when the client takes more. By a thread of the pool.

        Raises: as `Delivery.go_on`.
        """
        try:
            is_complete = delivery.go_on()
        except BaseException:
            delivery.close()
            raise
        if is_complete:
            delivery.close()
        else:
            self._defer(self._wait, delivery)
        return is_complete

    def end_slow(self, now: float) -> None:
        """Give up clients that took too little."""
        for delivery in [one for one in self._waiting if one.due_s <= now]:
            self._give_up(delivery, "it_took_too_little")

    def _wait(self, delivery: Delivery) -> None:
        if len(self._waiting) >= MAX_WAITING:
            self._give_up(min(self._waiting, key=lambda one: one.due_s), "too_many_wait")
        self._waiting.add(delivery)
        self._poller.register(delivery.conn.sock, selectors.EVENT_WRITE, partial(self._on_writable, delivery))

    def _on_writable(self, delivery: Delivery, client: ClientSocket) -> None:
        """It takes more, or has gone."""
        if delivery not in self._waiting:  # given up, by an event of the same round
            return
        self._poller.unregister(client)
        self._waiting.remove(delivery)
        self._run(partial(self._go_on, delivery))

    def _go_on(self, delivery: Delivery) -> None:
        """By a thread of the pool."""
        try:
            if not self.begin(delivery):
                return
            is_kept = not delivery.response.should_close()
        except (OSError, StopIteration):  # it has gone, or the answer broke off
            is_kept = False
        except Exception:  # a border: the connection must not be forgotten
            logger.exception("an answer cannot be ended")
            is_kept = False
        self._defer(self._finish, delivery.conn, is_kept)

    def _give_up(self, delivery: Delivery, reason: str) -> None:
        logger.warning("ended=client_too_slow what=%s", reason)
        self._poller.unregister(delivery.conn.sock)
        self._waiting.remove(delivery)
        self._run(partial(self._end, delivery))

    def _end(self, delivery: Delivery) -> None:
        """By a thread of the pool: what watches the socket lets go of it before its number is another's."""
        try:
            delivery.close()
        finally:
            self._defer(self._close, delivery.conn)
