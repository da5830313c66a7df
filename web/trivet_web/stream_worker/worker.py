"""gunicorn's threaded worker, for long streams and slow clients: a thread is held only to work.

- The poller of the main thread collects a request's bytes, up to `READ_AHEAD_S`, and hands it to a thread
  when it is complete. In the plain worker 40 clients that send one byte and stall stop 40 threads.
- A view may leave its request to the pump (handover.py): one thread for all requests that wait for an engine
  or are being streamed. A stream costs a socket and some kB, where a thread each costs 40 kB and 4 times the
  CPU a token.
- A whole answer that its client does not take at once waits in the main thread's poller, too (delivery.py).
- The last bytes of a connection are waited for by the poller too; gunicorn's main thread waits 2 s for each
  client that does not close, and answers nobody meanwhile.

Of gunicorn 27's internals it uses what `ThreadWorker` calls on itself; setup.cfg pins that version.
"""

from __future__ import annotations

import contextlib
import errno
import gc
import selectors
import signal
import socket
import sys
import time
from collections import deque
from collections.abc import Callable, Iterable
from concurrent.futures import Future
from functools import partial
from typing import Any, TypeAlias

from gunicorn.http import wsgi
from gunicorn.workers.gthread import ThreadWorker

from trivet_web.stream_worker.broken_http import ErrorPage, no_tls_here, too_much_at_once, too_slow
from trivet_web.stream_worker.certificate import Certificate
from trivet_web.stream_worker.client_socket import ClientSocket
from trivet_web.stream_worker.collected import Allowance
from trivet_web.stream_worker.connection import Connection
from trivet_web.stream_worker.delivery import Deliveries, Delivery, Outbox
from trivet_web.stream_worker.errands import Errands
from trivet_web.stream_worker.guests import Transfer, Waiting
from trivet_web.stream_worker.handover import HANDOVER, ByteStream, Handover, Parked
from trivet_web.stream_worker.lingering import Lingering
from trivet_web.stream_worker.pool import Pool
from trivet_web.stream_worker.pump import Pump
from trivet_web.web_process import EXTENSION, KILL_MARGIN_S

READ_AHEAD_S = 10.0  # for a whole request, from its first byte or the connection's start
IDLE_S = 2.0  # for one that sends nothing while the server drains
ACCEPT_AT_ONCE = 32
COMPLAIN_INTERVAL_S = 10.0
OUT_OF_FILES_S = 0.01
SPARE_CONNECTIONS = 64  # kept free by closing idle ones, so that a new client is always heard
SWITCH_INTERVAL_S = 0.0005  # beside a thread that tokenises the pump would wait 5 ms after each write
YOUNG_OBJECTS = (
    20_000  # a step of 1,000 streams makes thousands that end with it; from 700 on each was looked at
)
STANDSTILL_S = 5.0  # of a thread that comes round four times a second

Application: TypeAlias = Callable[[dict[str, Any], Any], Iterable[bytes]]


class StreamWorker(ThreadWorker):  # type: ignore[misc]  # gunicorn has no types
    """See the module. The main thread runs what has no other thread named."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.method_queue = Errands()
        self.allowance = Allowance()
        self._complained_s = 0.0  # of descriptors

    def get_thread_pool(self) -> Pool:
        return Pool(self.cfg.threads)

    def load_wsgi(self) -> None:
        super().load_wsgi()
        sys.setswitchinterval(SWITCH_INTERVAL_S)
        gc.collect()
        gc.freeze()  # what was loaded lives as long as the process: no collection need look at it
        gc.set_threshold(YOUNG_OBJECTS)
        self.certificate = Certificate(self.wsgi.extensions[EXTENSION].settings)
        self.deliveries = Deliveries(
            self.poller, self.method_queue.defer, self._run, self._finish, self._close
        )
        self.lingering = Lingering(self.poller, self._close)
        self.pump = Pump()
        self.wsgi.extensions[EXTENSION].relay.host(self.pump)

    # ---- a request comes in ----------------------------------------------------------------------

    def accept(self, listener: Any) -> None:
        """Several at once: each round of the main loop costs as much as three of them."""
        for _ in range(ACCEPT_AT_ONCE):
            if self.nr_conns >= self.worker_connections or listener.sock is None:
                return  # None: closed, by an event of the same round
            try:
                accepted, address = listener.accept()
            except OSError as error:
                if error.errno in (errno.EMFILE, errno.ENFILE):
                    self._run_out_of_files()
                elif error.errno not in (errno.EAGAIN, errno.ECONNABORTED):
                    self._complain("a connection was not taken: %s", error)
                    time.sleep(OUT_OF_FILES_S)  # it may still be there, and this loop would spin
                return
            self._take_in(accepted, address, listener)

    def _run_out_of_files(self) -> None:
        """The client waits in the listener."""
        self._complain("no file descriptor is left for a connection; raise the limit (ulimit -n)")
        if not self._close_an_idle_one():
            time.sleep(OUT_OF_FILES_S)  # else this loop spins until one is free

    def _complain(self, sentence: str, *values: object) -> None:
        """Of what would end this worker and all of its streams, were it raised."""
        now = time.monotonic()
        if now >= self._complained_s + COMPLAIN_INTERVAL_S:
            self._complained_s = now
            self.log.warning(sentence, *values)

    def _take_in(self, accepted: socket.socket, address: Any, listener: Any) -> None:
        self.nr_conns += 1
        if self.nr_conns > self.worker_connections - SPARE_CONNECTIONS:
            self._close_an_idle_one()
        client = ClientSocket(fileno=accepted.detach())
        client.prepare()
        try:
            client = self.certificate.secured(client)
        except OSError:  # it has gone
            self.nr_conns -= 1
            client.close()
            return
        self._collect(Connection(self.cfg, client, address, listener.getsockname(), self.allowance))

    def on_client_socket_readable(self, conn: Connection, client: ClientSocket) -> None:
        """A kept-alive connection has its next request's first bytes."""
        if client.fileno() < 0:  # closed to make room, by an event of the same round
            return
        self.poller.unregister(client)
        self.keepalived_conns.remove(conn)
        self._collect(conn)

    def on_pending_socket_readable(self, conn: Connection, client: ClientSocket) -> None:
        """More of a request has come."""
        if client.fileno() < 0:
            return
        if conn.read_more():
            self._look_at(conn)
        else:
            self._forget(conn, self.pending_conns)

    def _collect(self, conn: Connection) -> None:
        conn.sock.setblocking(False)
        conn.timeout = time.monotonic() + READ_AHEAD_S
        self.pending_conns.append(conn)
        self.poller.register(conn.sock, selectors.EVENT_READ, partial(self.on_pending_socket_readable, conn))

    def _look_at(self, conn: Connection) -> None:
        """Begin with what has been collected, if that is all."""
        if conn.collected.is_tls:
            self._refuse(conn, no_tls_here())
        elif not conn.charge():
            self._refuse(conn, too_much_at_once())
        elif conn.collected.is_complete:
            self._stop_collecting(conn)
            conn.hand_over()
            self.enqueue_req(conn)
        else:
            conn.invite_body()

    def enqueue_req(self, conn: Connection) -> None:
        """A probe first: who asks whether the server lives shall not wait until it has less to do."""
        submit = self.tpool.submit_urgent if conn.is_probe else self.tpool.submit
        future = submit(self.handle, conn)
        future.add_done_callback(lambda done: self.method_queue.defer(self.finish_request, conn, done))

    def _refuse(self, conn: Connection, answer: bytes) -> None:
        self._stop_collecting(conn)
        with contextlib.suppress(OSError):
            conn.sock.send(answer)
        self._linger(conn)

    def _stop_collecting(self, conn: Connection) -> None:
        self.poller.unregister(conn.sock)
        self.pending_conns.remove(conn)

    # ---- a request is answered, by a thread of the pool --------------------------------------------

    def handle_request(self, req: Any, conn: Connection) -> bool | Handover:
        """Whether the connection can be kept, or what the view left to the pump."""
        self.nr += 1
        _, environ = wsgi.create(req, conn.sock, conn.client, conn.server, self.cfg)
        environ["wsgi.multithread"] = True
        return self._answer(req, conn, environ, self.wsgi)

    def _answer(
        self, req: Any, conn: Connection, environ: dict[str, Any], application: Application
    ) -> bool | Handover:
        environ[HANDOVER] = Handover()
        outbox = Outbox(conn.sock)
        response = wsgi.Response(req, outbox, self.cfg)
        if not self.alive or conn.must_close or len(self.keepalived_conns) >= self.max_keepalived:
            response.force_close()
        body = application(environ, response.start_response)
        # Of the last that was asked (engines/fallback.py). Left there, it would keep the request alive.
        handover: Handover = environ.pop(HANDOVER)
        if handover.parked:
            self._park(req, conn, environ, handover.parked)
            return handover
        if not conn.must_close and not conn.has_read_body():
            response.force_close()
        conn.sock.setblocking(False)
        if handover.stream and req.method != "HEAD":
            self._stream(conn, response, outbox, handover.stream)
            return handover
        if handover.stream:
            body = ()  # of which only the head is wanted
            handover.stream.close()
        delivery = Delivery(conn, response, body, environ["wsgi.file_wrapper"])
        if not self.deliveries.begin(delivery):
            return handover
        conn.sock.setblocking(True)
        return not response.should_close()

    def _park(self, req: Any, conn: Connection, environ: dict[str, Any], parked: Parked) -> None:
        def resume() -> None:
            try:
                future = self.tpool.submit(self._resume, req, conn, environ, parked)
            except RuntimeError:  # shut down: the process is about to end
                parked.close()
                return
            future.add_done_callback(lambda done: self.method_queue.defer(self.finish_request, conn, done))

        Waiting(self.pump, parked, resume, partial(self.method_queue.defer, self._finish, conn, False))

    def _resume(self, req: Any, conn: Connection, environ: dict[str, Any], parked: Parked) -> bool | Handover:
        try:
            outcome = self._answer(req, conn, environ, lambda *given: parked.resume()(*given))
            return self._keepalive_after(conn, outcome)
        except (OSError, StopIteration):
            return False
        except Exception as error:
            self.handle_error(req, conn.sock, conn.client, error)
            return False

    def _stream(self, conn: Connection, response: Any, outbox: Outbox, stream: ByteStream) -> None:
        try:
            response.send_headers()
            outbox.flush()
        except BaseException:
            stream.close()
            raise
        self.method_queue.defer(conn.refund)

        def on_end(is_complete: bool) -> None:
            is_kept = is_complete and not response.should_close()
            self.method_queue.defer(self._finish, conn, is_kept)

        is_chunked, rest = response.chunked, outbox.take_rest()
        Transfer(self.pump, stream, conn.sock, self._run, on_end, is_chunked=is_chunked, unsent=rest)

    def _run(self, work: Callable[[], None]) -> None:
        with contextlib.suppress(RuntimeError):  # shut down: the process is about to end
            self.tpool.submit(work).add_done_callback(self._look_at_failure)

    def _look_at_failure(self, done: Future[None]) -> None:
        if error := done.exception():
            self.log.error("a thread's work failed", exc_info=error)

    def _keepalive_after(self, conn: Connection, keepalive: bool | Handover) -> bool | Handover:
        if isinstance(keepalive, Handover):
            return keepalive
        return bool(super()._keepalive_after(conn, keepalive))

    def handle_error(self, req: Any, client: ClientSocket, addr: Any, exc: Exception) -> None:
        """Logged by gunicorn, which chooses the status; the answer has the form of every other failure."""
        page = ErrorPage()
        super().handle_error(req, page, addr, exc)
        client.setblocking(False)
        with contextlib.suppress(OSError):  # also where it takes nothing: the connection ends anyway
            client.send(page.as_json(exc))

    # ---- a request is over -----------------------------------------------------------------------

    def finish_request(self, conn: Connection, fs: Any) -> None:
        outcome = False if fs.cancelled() or fs.exception() else fs.result()
        if not isinstance(outcome, Handover):  # the pump has it, and says when it is over
            self._finish(conn, outcome)

    def _finish(self, conn: Connection, is_kept: bool) -> None:
        conn.refund()
        if not is_kept:
            self._linger(conn)
        elif conn.take_pipelined():
            self._collect(conn)
            self._look_at(conn)
        else:
            conn.sock.setblocking(False)
            conn.set_timeout()
            if not self.alive:
                conn.timeout = min(conn.timeout, time.monotonic() + IDLE_S)
            self.keepalived_conns.append(conn)
            self.poller.register(
                conn.sock, selectors.EVENT_READ, partial(self.on_client_socket_readable, conn)
            )

    def _linger(self, conn: Connection) -> None:
        conn.refund()
        self.lingering.begin(conn)

    def _forget(self, conn: Connection, among: deque[Connection]) -> None:
        self.poller.unregister(conn.sock)
        among.remove(conn)
        self._close(conn)

    def _close(self, conn: Connection) -> None:
        conn.refund()
        self.nr_conns -= 1
        conn.close()

    def _close_an_idle_one(self) -> bool:
        """False where none is idle."""
        if self.lingering.end_oldest():
            return True
        for idle in (self.keepalived_conns, self.pending_conns):
            if idle:
                self._forget(idle[0], idle)  # the oldest
                return True
        return False

    def murder_pending(self) -> None:
        """Also those that linger. When draining, one that sends nothing must not hold up the end."""
        now = time.monotonic()
        if not self.alive:
            for conn in self.pending_conns:
                conn.timeout = min(conn.timeout, now + IDLE_S)
        while self.pending_conns and self.pending_conns[0].timeout <= now:
            conn = self.pending_conns[0]
            if conn.collected.data and self.alive:
                self._refuse(conn, too_slow(READ_AHEAD_S))
            else:
                self._forget(conn, self.pending_conns)
        self.lingering.end_late(now)
        self.deliveries.end_slow(now)

    # ---- the process -----------------------------------------------------------------------------

    def run(self) -> None:
        try:
            super().run()
            self.wsgi.extensions[EXTENSION].end_batches(self.notify)  # the master ends who is silent for long
        finally:  # also where it fails: threads that wait for work would keep the process alive
            self.tpool.shutdown(wait=False)

    def notify(self) -> None:
        """The master ends a worker that does not say this: one whose relay stands still, too."""
        now = time.monotonic()
        self.certificate.renew(now)
        if now - self.wsgi.extensions[EXTENSION].relay.turned_s < STANDSTILL_S:
            super().notify()

    def is_parent_alive(self) -> bool:
        """When gunicorn's master was killed, this worker drains too, and the next master needs the port."""
        if super().is_parent_alive():
            return True
        self.handle_exit(signal.SIGTERM, None)
        return False

    def handle_exit(self, sig: int, frame: Any) -> None:
        """SIGTERM. May run in a signal handler, so the work is left to the main loop."""
        if self.alive:
            # First: who is told to connect elsewhere shall not hear on the same connection that it is ready.
            self.wsgi.extensions[EXTENSION].is_draining = True
            self.method_queue.defer(self._begin_drain)
        super().handle_exit(sig, frame)

    def _begin_drain(self) -> None:
        self.set_accept_enabled(False)
        for listener in self.sockets:  # left open, they would let new connections wait for the end
            listener.close()
        self.wsgi.extensions[EXTENSION].begin_drain(self.cfg.graceful_timeout - KILL_MARGIN_S)
