"""Connections that have had their last answer: the client is let close first.

What it still sends would reset the connection under our last bytes. A client that sends a large file hears of
its refusal only when it has sent it; a proxy that is cut off before tells its client of an error of its own.
"""

from __future__ import annotations

import contextlib
import selectors
import socket
import time
from collections import deque
from collections.abc import Callable
from functools import partial

from trivet_web.stream_worker.client_socket import ClientSocket
from trivet_web.stream_worker.connection import Connection

LINGER_S = 2.0  # for a client to close, or to send on
LONGEST_S = 30.0  # for one that still sends the rest of an upload
SWALLOWED_BYTES = 64 << 10  # beside that rest
MAX_REST_BYTES = 256 << 20
RECV_BYTES = 256 << 10


class Lingering:
    """Of the main thread."""

    def __init__(self, poller: selectors.BaseSelector, close: Callable[[Connection], None]) -> None:
        self._poller = poller
        self._close = close
        self._waiting: deque[Connection] = deque()  # in the order of their timeouts, but for `LONGEST_S`

    def begin(self, conn: Connection) -> None:
        """Tell the client that nothing follows, and wait for its end."""
        conn.sock.setblocking(False)
        try:
            conn.sock.shutdown(socket.SHUT_WR)
        except OSError:  # it has gone
            self._close(conn)
            return
        now = time.monotonic()
        conn.timeout, conn.lingers_until_s = now + LINGER_S, now + LONGEST_S
        conn.linger_bytes = SWALLOWED_BYTES + min(conn.coming_bytes, MAX_REST_BYTES)
        self._waiting.append(conn)
        self._poller.register(conn.sock, selectors.EVENT_READ, partial(self._on_readable, conn))

    def end_late(self, now: float) -> None:
        """Give up those whose time is over."""
        while self._waiting and self._waiting[0].timeout <= now:
            self._forget(self._waiting[0])

    def end_oldest(self) -> bool:
        """False where there is none."""
        if self._waiting:
            self._forget(self._waiting[0])
            return True
        return False

    def _on_readable(self, conn: Connection, client: ClientSocket) -> None:
        """It sends more, or has closed."""
        if client.fileno() < 0:  # closed to make room, by an event of the same round
            return
        size = 0
        with contextlib.suppress(OSError):
            try:
                size = len(client.recv(RECV_BYTES))
            except BlockingIOError:
                return
        conn.linger_bytes -= size
        if not size or conn.linger_bytes < 0:
            self._forget(conn)
        elif conn.coming_bytes:
            conn.timeout = min(time.monotonic() + LINGER_S, conn.lingers_until_s)
            self._waiting.remove(conn)
            self._waiting.append(conn)

    def _forget(self, conn: Connection) -> None:
        self._poller.unregister(conn.sock)
        self._waiting.remove(conn)
        self._close(conn)
