"""Body of the supervisor process: waits for beats, requests, ends of processes; then reconciles."""

from __future__ import annotations

import logging
import os
import signal
import threading
import time

import zmq
from sqlalchemy.exc import DBAPIError

from trivet import __version__
from trivet_registry.retention import prune
from trivet_registry.supervision import SupervisionLost
from trivet_supervisor import engine_logs
from trivet_supervisor.engine_wire import ZmqWire
from trivet_supervisor.means import Means
from trivet_supervisor.orphans import OrphanWatch
from trivet_supervisor.protocol import Request, ShutDown, SupervisorStatus, Wake
from trivet_supervisor.reconcile import Reconciler
from trivet_supervisor.server import Server

logger = logging.getLogger(__name__)

LOOK_INTERVAL_S = 0.2  # an engine that ends is noticed so soon
TICK_INTERVAL_S = 1.0  # a change of desired state without a wake-up
RETRY_S = 2.0  # after a turn that failed: a full disk, a database that is away or locked
WATCH_INTERVAL_S = 0.5
LEAVE_S = 1.0  # for starts under way: the next supervisor looks for them at once
MAX_TURNS_S = 1.0  # in a row: then who asks is answered
PRUNE_INTERVAL_S = 600.0
PRUNE_DELAY_S = 5.0  # after the start: one that dies again and again prunes, too


class SupervisorProcess:
    """Holds no request and no state that the registry lacks: it may die at any time."""

    def __init__(self, means: Means, reconciler: Reconciler, wire: ZmqWire, server: Server) -> None:
        self._means = means
        self._reconciler = reconciler
        self._wire = wire
        self._server = server
        self._is_leaving = False
        self._is_woken = True
        self._next_tick_s = 0.0
        self._next_prune_s = time.monotonic() + PRUNE_DELAY_S
        self._orphans = OrphanWatch(means)
        self._problem = ""  # why the last turn failed
        self._poller = zmq.Poller()
        self._poller.register(wire.socket, zmq.POLLIN)
        self._poller.register(server.socket, zmq.POLLIN)

    def leave(self) -> None:
        """End this process and leave the engines to the next one. Called from a signal handler or thread."""
        self._is_leaving = True

    def run(self) -> None:
        """Until told to leave, or until a shutdown is complete.

        Raises: SupervisionLost where another supervisor manages the registry by now.
        """
        is_over = threading.Event()
        watch = threading.Thread(target=self._watch, args=(is_over,), name="watch", daemon=True)
        watch.start()
        try:
            while not self._is_leaving:
                self._poller.poll(int(LOOK_INTERVAL_S * 1000))
                self._server.serve(self._handle)
                self._look()
                if self._has_shut_down():
                    logger.info("every engine has ended")
                    return
        finally:
            self._reconciler.fleet.await_starts(LEAVE_S)
            is_over.set()
            watch.join()

    def _watch(self, is_over: threading.Event) -> None:
        """On a thread of its own: no transaction holds it up."""
        while not is_over.wait(WATCH_INTERVAL_S):
            try:
                self._reconciler.fleet.tell_of_watch()
            except Exception:  # a border like the loop's: engines would take themselves for orphans
                logger.exception("the watch could not be told; tried again in %s s", WATCH_INTERVAL_S)

    def _has_shut_down(self) -> bool:
        if self._reconciler.has_ended_unwritten:
            return True
        return self._reconciler.is_shutting_down and not self._reconciler.waits_for_engines()

    def _look(self) -> None:
        fleet = self._reconciler.fleet
        is_due = time.monotonic() >= self._next_tick_s
        # What a failed turn left undone is no news: without this it would be tried in every turn.
        is_news = fleet.hear() or fleet.has_news() or self._reconciler.placing.has_news()
        is_news &= not self._problem
        if not (is_news or self._is_woken or is_due):
            return
        self._is_woken = False
        self._next_tick_s = time.monotonic() + TICK_INTERVAL_S
        try:
            rest_s = time.monotonic() + MAX_TURNS_S
            while self._reconciler.tick():
                if time.monotonic() > rest_s:
                    self._is_woken = True
                    break
            self._prune()
            self._orphans.turn()
            self._server.keep_bound()
            self._problem = ""
        except SupervisionLost:
            raise  # to leave is all that is right now: the engines are another's
        except Exception as error:  # the supervisor loop's border: engines must not go unwatched
            problem = f"the registry: {error.orig}" if isinstance(error, DBAPIError) else repr(error)
            if problem != self._problem:
                logger.exception("turns fail; each next is %s s later", RETRY_S)
            self._problem = problem
            self._next_tick_s = time.monotonic() + RETRY_S
            if isinstance(error, DBAPIError):
                self._reconciler.end_unwritten()

    def _prune(self) -> None:
        if time.monotonic() >= self._next_prune_s:
            self._next_prune_s = time.monotonic() + PRUNE_INTERVAL_S
            with self._means.database.session() as session:
                pruned = prune(session)
            engine_logs.remove_logs(self._means.settings.paths, pruned.deployments)
            logger.info("pruned_rows=%d", pruned.num_rows)

    def _handle(self, request: Request) -> SupervisorStatus:
        if isinstance(request, ShutDown):
            logger.info("shutting down, drain_timeout_s=%g", request.drain_timeout_s)
            self._reconciler.shut_down(request.drain_timeout_s)
        self._is_woken |= isinstance(request, (ShutDown, Wake))
        return SupervisorStatus(
            pid=os.getpid(),
            version=__version__,
            as_of=time.time(),
            num_followed=self._reconciler.fleet.num_followed,
            is_shutting_down=self._reconciler.is_shutting_down,
            problem=self._problem,
        )


def leave_on_signals(process: SupervisorProcess) -> None:
    """SIGTERM and SIGINT leave the engines alone: only a shutdown request ends them."""
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda signum, frame: process.leave())
