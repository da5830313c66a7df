"""A client's connection, of which the next request is collected before a thread gets it."""

from __future__ import annotations

import contextlib
import time
from typing import Any

from gunicorn import http
from gunicorn.http.errors import ParseException
from gunicorn.workers.gthread import TConn

from trivet_web.stream_worker.client_socket import ClientSocket
from trivet_web.stream_worker.collected import Allowance, Collected

_RECV_BYTES = 256 << 10
BODY_REST_S = 1.0  # for what has not been collected of a body that nobody wants


class Connection(TConn):  # type: ignore[misc]  # gunicorn has no types
    """Everything but the parser is of the main thread."""

    def __init__(
        self, cfg: Any, client: ClientSocket, address: Any, server: Any, allowance: Allowance
    ) -> None:
        super().__init__(cfg, client, address, server)
        self.parser = http.get_parser(cfg, client, address)
        self.initialized = True  # `greet` is called before gunicorn would
        self.collected = Collected()
        self.must_close = False
        self.is_probe = False  # its request asks for the server's health
        self.linger_bytes = 0  # that are read and thrown away at the most, after the last answer
        self.lingers_until_s = 0.0  # CLOCK_MONOTONIC
        self.coming_bytes = 0  # of the request's body, that may not have been read
        self._allowance = allowance
        self._charged_bytes = 0
        self._has_continued = False

    def read_more(self) -> bool:
        """Whether the client is still there."""
        try:
            if not self.sock.greet():
                return True
            new = self.sock.recv(_RECV_BYTES)
            while self.sock.has_more:
                new += self.sock.recv(_RECV_BYTES)
        except BlockingIOError:
            return True
        except OSError:
            return False
        self.collected.add(new)
        return bool(new)

    def charge(self) -> bool:
        """Pay for what has been collected. False where the process holds too much already."""
        more = self.collected.charged_bytes - self._charged_bytes
        if more <= 0:
            return True
        is_paid = self._allowance.take(more)
        self._charged_bytes += more if is_paid else 0
        return is_paid

    def refund(self) -> None:
        """The request's body is held no more."""
        self._allowance.give_back(self._charged_bytes)
        self._charged_bytes = 0

    def invite_body(self) -> None:
        """A client that asked first waits for this before it sends the body."""
        if not self._has_continued and self.collected.asks_first:
            self._has_continued = True
            with contextlib.suppress(OSError):
                self.sock.send(b"HTTP/1.1 100 Continue\r\n\r\n")

    def has_read_body(self) -> bool:
        """Whether nothing is left of the request's body; what is there already is thrown away.

        By the thread that answers, while the socket blocks. What would be left would pass for a next request.
        """
        try:
            return bool(self.parser.finish_body(deadline=time.monotonic() + BODY_REST_S))
        except (OSError, ParseException):
            return False

    def take_pipelined(self) -> bool:
        """Collect what has come of the next request with the last one. False where nothing has."""
        early = self.parser.unreader.take_buffered()
        if early:
            self.collected.add(early)
        return bool(early)

    def hand_over(self) -> None:
        """Give what was collected to the parser; a thread reads on, where that is not all."""
        self.sock.begin_body()
        self.parser.unreader.unread(bytes(self.collected.data))
        self.must_close = self.collected.has_rest
        self.is_probe = self.collected.is_probe
        self.coming_bytes = self.collected.coming_bytes
        self.collected = Collected()
        self._has_continued = False
