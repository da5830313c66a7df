"""The one thread of a web process that owns every ZeroMQ socket, and hosts the pump of streams.

The pump is stream_worker/pump.py.

Request threads never touch a socket (they are not thread-safe): they append a command to a deque and
write an eventfd, and read their own mailbox. A request ends within milliseconds of its engine's death,
because the socket monitor reports the closed ipc connection; a frozen engine is found by its silence.
Engines outlive this process, so one may be of another version: what it sends and this one cannot read
ends its requests, and never this thread. What nobody foresaw ends the whole process, so that gunicorn
starts another: without this thread every request would wait for ever.
"""

from __future__ import annotations

import contextlib
import logging
import os
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from pathlib import Path
from typing import Protocol

import msgspec
import zmq

from trivet.config import Paths
from trivet.endpoints import Endpoints, connect, local_endpoints
from trivet.errors import TrivetError, Unavailable
from trivet.messages import Beat, Look, ResetPrefixCache, Submit
from trivet_web.engines.engine_link import MAX_MESSAGES, Connection, EngineLink, EngineView, Recipient
from trivet_web.engines.mailbox import Mailbox

logger = logging.getLogger(__name__)
TICK_S = 0.25  # how often silence and deadlines are looked at
RECONNECT_MS = 200
EXIT_CRASHED = 1  # gunicorn starts another worker; at 3 and 4 it would give up

_beats = msgspec.msgpack.Decoder(Beat)


class Hosted(Protocol):
    """What the relay's thread does besides; it must not wait."""

    def fileno(self) -> int:
        """Readable when there is something to do."""
        ...

    def come_round(self, now: float) -> None:
        """Called after each look at the engines, and at least every `TICK_S`."""
        ...

    def serve_woken(self, now: float) -> None:
        """Called when some of a step's pieces have been handed out."""
        ...


class Relay:
    """Create it after the fork; `close` ends the thread and every open request."""

    def __init__(self, run_dir: Path, clock: Callable[[], float] = time.monotonic) -> None:
        self._run_dir = run_dir
        self._clock = clock
        self._commands: deque[Callable[[], None]] = deque()
        self._wake = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._is_closed = False  # its descriptors are somebody else's then
        self._closed_lock = threading.Lock()
        self._links: dict[str, EngineLink] = {}
        self._views: dict[str, EngineView] = {}
        self._key_file = Paths(run_dir.parent).engine_keys_file
        self._located: Mapping[str, Endpoints] = {}  # those that are not in the run directory
        self._watched: dict[str, Endpoints] = {}  # where their beats come from
        self._closing = False
        self._ending: TrivetError | None = None  # of every request from now on
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._beats = self._context.socket(zmq.SUB)
        self._hosted: list[Hosted] = []
        self._ticked_s = 0.0
        self._thread = threading.Thread(target=self._run, name="relay", daemon=True)
        self._thread.start()

    # ---- called from any thread ------------------------------------------------------------------

    def submit(
        self, instance_id: str, request: Submit | ResetPrefixCache | Look, mailbox: Mailbox, choice: int
    ) -> None:
        """Start one sequence; its pieces, or its loss, arrive in `mailbox` under `choice`."""
        self._do(partial(self._submit, instance_id, request, Recipient(mailbox, choice)))

    def abort(self, instance_id: str, request_id: str) -> None:
        """Nothing arrives for this request any more. Harmless when it has ended."""
        self._do(partial(self._abort, instance_id, request_id))

    def tell(self, mailbox: Mailbox, error: TrivetError, choice: int | None) -> None:
        """Put a loss down, between two turns of the readers that this thread hosts."""
        self._do(partial(mailbox.fail, error, choice))

    def watch(self, instance_ids: Iterable[str]) -> None:
        """Follow the beats of exactly these instances and stay connected to them."""
        self._do(partial(self._watch, frozenset(instance_ids)))

    def locate(self, endpoints: Mapping[str, Endpoints]) -> None:
        """Where the engines are that are not in the run directory; to be told before they are watched."""
        self._do(partial(self._locate, dict(endpoints)))

    def view(self, instance_id: str) -> EngineView | None:
        return self._views.get(instance_id)

    def host(self, hosted: Hosted) -> None:
        """One thread for both: pieces go from an engine to a socket without a change of threads."""
        self._do(partial(self._host, hosted))

    @property
    def turned_s(self) -> float:
        """When its thread last looked around (`clock`)."""
        return self._ticked_s

    def end_all(self, error: TrivetError) -> None:
        """Fail every open request for good, and tell the engines. Those that come later fail alike."""
        self._do(partial(self._end_all, error))

    def close(self) -> None:
        self._do(self._stop)
        self._thread.join()
        with self._closed_lock:
            self._is_closed = True
            os.close(self._wake)

    def _do(self, command: Callable[[], None]) -> None:
        self._commands.append(command)
        with self._closed_lock:
            if not self._is_closed:
                os.eventfd_write(self._wake, 1)

    # ---- the relay thread ------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            self._serve_until_closed()
        finally:
            if not self._closing:
                logger.critical("relay=crashed exit_code=%d", EXIT_CRASHED, exc_info=sys.exc_info()[1])
                os._exit(EXIT_CRASHED)  # SystemExit would end this thread only

    def _serve_until_closed(self) -> None:
        self._poller = zmq.Poller()
        self._poller.register(self._wake, zmq.POLLIN)
        self._beats.linger = 0
        self._beats.subscribe(b"")
        self._beats.reconnect_ivl = RECONNECT_MS
        self._poller.register(self._beats, zmq.POLLIN)
        self._ticked_s = self._clock()
        while not self._closing:
            timeout_s = max(0.0, self._ticked_s + TICK_S - self._clock())
            ready = {entry for entry, _ in self._poller.poll(int(timeout_s * 1000))}
            if self._wake in ready:
                self._take_commands()
            if self._beats in ready:
                self._take_beats()
            for link in list(self._links.values()):
                self._serve(link, ready)
            for hosted in self._hosted:
                hosted.come_round(self._clock())
            if self._clock() >= self._ticked_s + TICK_S:
                self._tick()
        for link in list(self._links.values()):
            self._drop(link)
        self._beats.close(0)
        self._context.term()

    def _take_commands(self) -> None:
        os.eventfd_read(self._wake)
        for _ in range(MAX_MESSAGES):
            if not self._commands:
                return
            self._commands.popleft()()
        os.eventfd_write(self._wake, 1)  # more next turn

    def _take_beats(self) -> None:
        for _ in range(MAX_MESSAGES):
            try:
                beat = _beats.decode(self._beats.recv(zmq.NOBLOCK))
            except zmq.Again:
                return
            except msgspec.MsgspecError as error:
                logger.warning("beat=unreadable error=%s", error)
                continue
            view = self._views.get(beat.instance_id)
            if view is None:
                continue
            view.on_beat(beat, self._clock())
            if view.can_serve and view.beat is not None:
                with contextlib.suppress(TrivetError):  # the request that needs it will say so
                    self._link(beat.instance_id)  # so that its end is noticed with no request open, too

    def _serve(self, link: EngineLink, ready: set[object]) -> None:
        try:
            self._take_reports(link, ready)
        except msgspec.MsgspecError as error:
            logger.warning("instance=%s report=unreadable error=%s", link.instance_id, error)
            self._lose(link, "sent what this version cannot read")
            return
        if link.connection is Connection.LOST:
            self._lose(link, "ended")

    def _serve_hosted(self, now: float) -> None:
        for hosted in self._hosted:
            hosted.serve_woken(now)

    def _take_reports(self, link: EngineLink, ready: set[object]) -> None:
        """Reports before the end of the connection: what an engine sent before it died still counts."""
        now = self._clock()
        if link.socket in ready and link.on_reports(now):
            view = self._view(link.instance_id)
            view.last_seen_s, view.load = now, link.load
        if link.monitor in ready:
            link.on_monitor()
            while link.connection is Connection.LOST and link.on_reports(now):
                pass

    def _tick(self) -> None:
        now = self._clock()
        was_held_up = now - self._ticked_s > 4 * TICK_S
        self._ticked_s = now
        if was_held_up:  # this process slept, not the engines: give them their time again
            for view in self._views.values():
                view.last_seen_s = now
            return
        for link in list(self._links.values()):
            if link.has_timed_out(now):
                self._lose(link, "did not answer")
            elif link.num_open == 0 and link.instance_id not in self._watched:
                self._drop(link)
        for instance_id in self._views.keys() - self._watched.keys() - self._links.keys():
            del self._views[instance_id]  # of a request that outlived its deployment
        for view in self._views.values():
            if view.lost_because is None and view.is_silent(now):
                self._lose_silent(view, now)

    def _lose_silent(self, view: EngineView, now: float) -> None:
        """The connection stays: an engine that only slept hears of the aborts and beats again."""
        silence_s = now - view.last_seen_s
        error = view.lose(f"has been silent for {silence_s:.0f} s", now)
        logger.warning("instance=%s lost=silence silence_s=%.1f", view.instance_id, silence_s)
        if link := self._links.get(view.instance_id):
            link.fail_all(error)

    def _lose(self, link: EngineLink, reason: str) -> None:
        error = self._view(link.instance_id).lose(reason, self._clock())
        logger.warning(
            "instance=%s lost=%s open_requests=%d", link.instance_id, reason.replace(" ", "_"), link.num_open
        )
        link.fail_all(error)
        self._drop(link)

    def _submit(
        self, instance_id: str, request: Submit | ResetPrefixCache | Look, recipient: Recipient
    ) -> None:
        if self._ending is not None:
            recipient.mailbox.fail(self._ending)
            return
        try:
            link = self._link(instance_id)
        except TrivetError as error:
            recipient.mailbox.fail(error, recipient.choice)
            return
        link.submit(request, recipient)

    def _abort(self, instance_id: str, request_id: str) -> None:
        if link := self._links.get(instance_id):
            link.abort(request_id)

    def _end_all(self, error: TrivetError) -> None:
        self._ending = error
        for link in self._links.values():
            link.fail_all(error, is_final=True)

    def _watch(self, instance_ids: frozenset[str]) -> None:
        for instance_id in self._watched.keys() - instance_ids:
            self._stop_hearing(instance_id)
            self._views.pop(instance_id, None)
        for instance_id in instance_ids - self._watched.keys():
            self._hear(instance_id)

    def _hear(self, instance_id: str) -> None:
        self._view(instance_id)
        try:
            endpoints = self._endpoints(instance_id)
            self._disconnect(endpoints)
            connect(self._beats, endpoints.beat, endpoints.server_key, self._key_file)
        except (TrivetError, zmq.ZMQError) as error:  # the request that needs it will say so
            logger.warning("instance=%s beats=unheard error=%s", instance_id, error)
            return
        self._watched[instance_id] = endpoints

    def _stop_hearing(self, instance_id: str) -> None:
        ended = self._watched.pop(instance_id)
        self._disconnect(ended)
        for other in [one for one, endpoints in self._watched.items() if endpoints.beat == ended.beat]:
            self._hear(other)

    def _disconnect(self, endpoints: Endpoints) -> None:
        """An address has one connection in libzmq, with the key of whoever was the first to have it.

        An engine on another host may get the port of one that has ended, whose row is still there.
        """
        with contextlib.suppress(zmq.ZMQError):  # it is not connected
            self._beats.disconnect(endpoints.beat)

    def _locate(self, located: Mapping[str, Endpoints]) -> None:
        """A new attempt listens elsewhere; what was open at the old one ends with its connection."""
        self._located = located
        for instance_id, known in list(self._watched.items()):
            if not self._is_at(instance_id, known):
                self._stop_hearing(instance_id)
                if link := self._links.get(instance_id):
                    link.fail_all(self._view(instance_id).lose("has ended", self._clock()))
                    self._drop(link)
                self._views.pop(instance_id, None)  # what was seen of the last attempt is none of this one
                self._hear(instance_id)

    def _is_at(self, instance_id: str, known: Endpoints) -> bool:
        try:
            return self._endpoints(instance_id) == known
        except TrivetError:  # it is not known where it is, and was on another host
            return False

    def _endpoints(self, instance_id: str) -> Endpoints:
        """Raises: ConfigError where a socket's path is too long."""
        return self._located.get(instance_id) or local_endpoints(self._run_dir, instance_id)

    def _host(self, hosted: Hosted) -> None:
        self._hosted.append(hosted)
        self._poller.register(hosted.fileno(), zmq.POLLIN)

    def _stop(self) -> None:
        self._end_all(Unavailable("the web server is shutting down; send the request again"))
        self._closing = True

    def _view(self, instance_id: str) -> EngineView:
        if instance_id not in self._views:
            self._views[instance_id] = EngineView(instance_id, last_seen_s=self._clock())
        return self._views[instance_id]

    def _link(self, instance_id: str) -> EngineLink:
        """Raises: ConfigError for a path that is too long, or keys; Unavailable without a free descriptor."""
        link = self._links.get(instance_id)
        if link is None:
            endpoints = self._endpoints(instance_id)
            try:
                link = EngineLink(
                    self._context,
                    instance_id,
                    endpoints,
                    self._key_file,
                    self._clock(),
                    self._serve_hosted,
                )
            except zmq.ZMQError as error:
                raise Unavailable(f"no connection to instance {instance_id}: {error}; try again") from error
            self._links[instance_id] = link
            self._poller.register(link.socket, zmq.POLLIN)
            self._poller.register(link.monitor, zmq.POLLIN)
        return link

    def _drop(self, link: EngineLink) -> None:
        del self._links[link.instance_id]
        self._poller.unregister(link.socket)
        self._poller.unregister(link.monitor)
        link.close()
