"""gunicorn's threaded worker, with a request read in full before it gets a thread, and deadlines on sockets.

In the plain worker a client that sends one byte and stalls holds a thread for as long as it likes: 40 of
them stopped a server of 40 threads for ever. Here the poller of the main thread collects a request's bytes,
up to `READ_AHEAD_S`, and hands it over when it is complete; nothing but its memory is held until then.
Only methods that gunicorn 27 itself calls are replaced; anything not foreseen here goes the plain way, with
a socket timeout.
"""

from __future__ import annotations

import contextlib
import errno
import re
import selectors
import socket
import time
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from gunicorn import http
from gunicorn.workers.gthread import TConn, ThreadWorker

from trivet_web.api.request_body import MAX_BODY_BYTES
from trivet_web.broken_http import ErrorPage
from trivet_web.web_process import EXTENSION

READ_AHEAD_S = 10.0  # for a whole request, from its first byte or the connection's start
DRAIN_LINGER_S = 2.0
IO_TIMEOUT_S = 30.0  # for one read or write by a thread: a client that takes nothing is dropped
MAX_HEAD_BYTES = 64 << 10
MAX_TRAILER_BYTES = 4 << 10
MAX_SWALLOWED_BYTES = 64 << 20  # of a body over the limit; beyond it the connection is broken
_RECV_BYTES = 256 << 10
_LENGTH = re.compile(rb"\r\ncontent-length:[ \t]*(\d{1,12})[ \t]*\r\n", re.IGNORECASE)
_EXPECT = re.compile(rb"\r\nexpect:[ \t]*100-continue[ \t]*\r\n", re.IGNORECASE)
_LAST_CHUNK = re.compile(rb"\r\n0+[ \t]*(?:;[^\r\n]*)?\r\n(?:[^\r\n]+\r\n)*\r\n\Z")
_CHUNKED = re.compile(rb"\r\ntransfer-encoding:[^\r]*chunked", re.IGNORECASE)


@dataclass(slots=True)
class Collected:
    """The bytes of one request so far, head first. A body over the limit is counted and thrown away."""

    data: bytearray = field(default_factory=bytearray)
    num_dropped: int = 0
    head_bytes: int = 0  # 0: the head is not complete
    body_bytes: int | None = 0  # None: chunked

    def add(self, new: bytes) -> None:
        if self.is_too_large:
            self.num_dropped += len(new)
            return
        self.data += new
        if not self.head_bytes:
            self._read_head()

    @property
    def is_complete(self) -> bool:
        """Whether a thread can go through the request without waiting for the client.

        It only decides when a thread begins: parsing is gunicorn's. An error here costs time, not safety.
        """
        if not self.head_bytes:
            return len(self.data) > MAX_HEAD_BYTES  # gunicorn refuses it
        if self.body_bytes is None:
            return self._has_last_chunk or len(self.data) > MAX_BODY_BYTES
        if self.body_bytes > MAX_SWALLOWED_BYTES:
            return True
        return len(self.data) + self.num_dropped >= self.head_bytes + self.body_bytes

    @property
    def is_too_large(self) -> bool:
        """The view refuses it by its length; a client sees that only when it has sent everything."""
        return (self.body_bytes or 0) > MAX_BODY_BYTES

    @property
    def _has_last_chunk(self) -> bool:
        """Trailers, which nobody reads, may stand between it and the empty line."""
        if not self.data.endswith(b"\r\n\r\n"):
            return False
        start = max(self.head_bytes - 2, len(self.data) - MAX_TRAILER_BYTES)
        return _LAST_CHUNK.search(self.data, start) is not None

    def _read_head(self) -> None:
        end = self.data.find(b"\r\n\r\n")
        if end < 0:
            return
        self.head_bytes = end + 4
        head = bytes(self.data[: end + 2])
        if _CHUNKED.search(head):
            self.body_bytes = None
        elif length := _LENGTH.search(head):
            self.body_bytes = int(length[1])


class ClientSocket(socket.socket):
    """Blocking calls end after `IO_TIMEOUT_S`, as if the client had broken the connection."""

    def setblocking(self, flag: bool) -> None:
        self.settimeout(IO_TIMEOUT_S if flag else 0.0)

    def recv(self, *args: Any) -> bytes:
        try:
            return super().recv(*args)
        except TimeoutError:
            raise ConnectionResetError(errno.ECONNRESET, "the client stalled while sending") from None

    def sendall(self, *args: Any) -> None:
        try:
            super().sendall(*args)
        except TimeoutError:
            raise ConnectionResetError(errno.ECONNRESET, "the client stalled while receiving") from None


class Connection(TConn):  # type: ignore[misc]  # gunicorn has no types
    """A connection whose next request is being collected."""

    def __init__(self, cfg: Any, client: ClientSocket, address: Any, server: Any) -> None:
        super().__init__(cfg, client, address, server)
        self.parser = http.get_parser(cfg, client, address)
        self.initialized = True  # no TLS here: a proxy does that
        self.collected = Collected()
        self.has_continued = False
        self.must_close = False

    def read_more(self) -> bool:
        """Whether the client is still there."""
        try:
            new = self.sock.recv(_RECV_BYTES)
        except BlockingIOError:
            return True
        except OSError:
            return False
        self.collected.add(new)
        return bool(new)

    def invite_body(self) -> None:
        """A client that asked first (curl does for large bodies) waits for this before it sends the body."""
        if not self.has_continued and _EXPECT.search(self.collected.data):
            self.has_continued = True
            with contextlib.suppress(OSError):
                self.sock.send(b"HTTP/1.1 100 Continue\r\n\r\n")

    def hand_over(self) -> None:
        """Give what was collected to the parser."""
        self.parser.unreader.unread(bytes(self.collected.data))
        self.must_close = self.collected.is_too_large  # the rest of its body is gone
        self.collected = Collected()
        self.has_continued = False


class PatientWorker(ThreadWorker):  # type: ignore[misc]  # gunicorn has no types
    """See the module."""

    def accept(self, listener: Any) -> None:
        try:
            accepted, address = listener.accept()
        except OSError as error:
            if error.errno not in (errno.EAGAIN, errno.ECONNABORTED, errno.EWOULDBLOCK):
                raise
            return
        self.nr_conns += 1
        client = ClientSocket(fileno=accepted.detach())
        # Tokens are small writes; waiting to join them would add 40 ms to each.
        client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        conn = Connection(self.cfg, client, address, listener.getsockname())
        self._collect(conn)

    def on_client_socket_readable(self, conn: Connection, client: ClientSocket) -> None:
        """A kept-alive connection has its next request's first bytes."""
        self.poller.unregister(client)
        self.keepalived_conns.remove(conn)
        self._collect(conn)

    def on_pending_socket_readable(self, conn: Connection, client: ClientSocket) -> None:
        """More of a request has come."""
        if not conn.read_more():
            self._stop_collecting(conn)
            self.nr_conns -= 1
            conn.close()
        elif conn.collected.is_complete:
            self._stop_collecting(conn)
            conn.hand_over()
            self.enqueue_req(conn)
        else:
            conn.invite_body()

    def handle_error(self, req: Any, client: ClientSocket, addr: Any, exc: Exception) -> None:
        """Logged by gunicorn, which chooses the status; the answer has the form of every other failure."""
        page = ErrorPage()
        super().handle_error(req, page, addr, exc)
        with contextlib.suppress(OSError):
            client.sendall(page.as_json(exc))

    def is_parent_alive(self) -> bool:
        """When gunicorn's master was killed, this worker drains, and the next master needs the port."""
        if super().is_parent_alive():
            return True
        # Left open, new connections would wait in its queue for the end of the drain.
        self.set_accept_enabled(False)
        for listener in self.sockets:
            listener.close()
        return False

    def murder_pending(self) -> None:
        """Also when draining: a connection that sends nothing must not hold up the end."""
        if not self.alive:
            latest = time.monotonic() + DRAIN_LINGER_S
            for conn in self.pending_conns:
                conn.timeout = min(conn.timeout, latest)
        super().murder_pending()

    def handle_exit(self, sig: int, frame: Any) -> None:
        """SIGTERM. Runs in a signal handler, so the work is left to the main loop."""
        if self.alive:
            self.method_queue.defer(self._begin_drain)
        super().handle_exit(sig, frame)

    def _begin_drain(self) -> None:
        self.wsgi.extensions[EXTENSION].begin_drain(self.cfg.graceful_timeout)

    def _keepalive_after(self, conn: Connection, keepalive: bool) -> bool:
        return bool(super()._keepalive_after(conn, keepalive and not conn.must_close))

    def _collect(self, conn: Connection) -> None:
        conn.sock.setblocking(False)
        conn.timeout = time.monotonic() + READ_AHEAD_S
        self.pending_conns.append(conn)
        self.poller.register(conn.sock, selectors.EVENT_READ, partial(self.on_pending_socket_readable, conn))

    def _stop_collecting(self, conn: Connection) -> None:
        self.poller.unregister(conn.sock)
        self.pending_conns.remove(conn)
