"""A client's socket, with TLS or without: both behave alike towards the worker and the pump."""

from __future__ import annotations

import contextlib
import errno
import math
import socket
import ssl
import time
from typing import Any

IO_TIMEOUT_S = 30.0  # for one read or write: a client that takes nothing for so long is dropped
LEAST_BYTES_PER_S = 4 << 10  # that a client sends or takes on average, once `IO_TIMEOUT_S` have passed
UNSENT_BYTES = 128 << 10  # of a client, kept by the kernel


class ClientSocket(socket.socket):
    """Blocking calls end after `IO_TIMEOUT_S`, as if the client had broken the connection."""

    _began_s = math.inf  # CLOCK_MONOTONIC, when a thread began to read a body
    _num_read = 0  # bytes of it

    def begin_body(self) -> None:
        """A thread is about to read what it has not collected of a body."""
        self._began_s, self._num_read = time.monotonic(), 0

    def prepare(self) -> None:
        """Set what all clients' sockets have."""
        # Tokens are small writes; waiting to join them would add 40 ms to each.
        self.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        # Else the kernel takes megabytes for a client that reads nothing, before we see that it does not.
        self.setsockopt(socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT, UNSENT_BYTES)

    def greet(self) -> bool:
        """Whether the connection stands; else it does not yet, and more bytes are needed. Raises: OSError."""
        return True

    @property
    def has_more(self) -> bool:
        """Whether bytes can be read that the kernel does not tell of."""
        return False

    def setblocking(self, flag: bool) -> None:
        self.settimeout(IO_TIMEOUT_S if flag else 0.0)

    def recv(self, *args: Any) -> bytes:
        try:
            data = super().recv(*args)
        except TimeoutError:
            raise ConnectionResetError(errno.ECONNRESET, "the client stalled while sending") from None
        if self.gettimeout():
            self._num_read += len(data)
            if time.monotonic() > self._began_s + IO_TIMEOUT_S + self._num_read / LEAST_BYTES_PER_S:
                raise ConnectionResetError(errno.ECONNRESET, "the client sends too slowly")
        return data

    def sendall(self, *args: Any) -> None:
        try:
            super().sendall(*args)
        except TimeoutError:
            raise ConnectionResetError(errno.ECONNRESET, "the client stalled while receiving") from None


class TlsClientSocket(ClientSocket, ssl.SSLSocket):
    """As a context's `sslsocket_class`. Without renegotiation no read waits to write, no write to read."""

    _stands = False

    def greet(self) -> bool:
        if not self._stands:
            try:
                self.do_handshake()
            except (ssl.SSLWantReadError, ssl.SSLWantWriteError):
                return False
            except ssl.SSLError as error:
                if error.reason == "HTTP_REQUEST":
                    self._answer_in_the_clear()
                raise
            self._stands = True
        return True

    @property
    def has_more(self) -> bool:
        return self.pending() > 0

    def recv(self, *args: Any) -> bytes:
        try:
            return super().recv(*args)
        except ssl.SSLWantReadError:
            raise BlockingIOError(errno.EAGAIN, "nothing has come") from None

    def send(self, *args: Any) -> int:
        try:
            return super().send(*args)
        except ssl.SSLWantWriteError:
            raise BlockingIOError(errno.EAGAIN, "nothing can be written") from None

    def shutdown(self, how: int) -> None:
        """The end of the TLS stream first: without it a client cannot tell the end from a cut."""
        with contextlib.suppress(OSError, ValueError):
            self.unwrap()  # which waits for nobody here: the socket does not block
        super().shutdown(how)

    def _answer_in_the_clear(self) -> None:
        message = b"this port speaks HTTPS; ask for https:// instead of http://\n"
        head = (
            b"HTTP/1.1 400 Bad Request\r\nConnection: close\r\nContent-Type: text/plain\r\nContent-Length: "
        )
        with contextlib.suppress(OSError):
            socket.socket.recv(self, 64 << 10)  # what is left unread would reset the connection
            socket.socket.send(self, head + b"%d\r\n\r\n" % len(message) + message)
            socket.socket.shutdown(self, socket.SHUT_WR)
