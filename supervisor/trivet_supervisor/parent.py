"""`trivet serve`: starts supervisor and web, starts each again when it dies, ends everything when told to.

It holds nothing but two children and a pipe: when it is killed, both see the pipe end and go, the engines
go on serving what they have, and the next serve adopts them.
"""

from __future__ import annotations

import http.client
import logging
import os
import select
import signal
import ssl
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from urllib.parse import urlsplit

from trivet.access import local_url
from trivet.config import Settings, inherited_environment, settings_to_environment
from trivet.errors import TrivetError, Unavailable
from trivet_supervisor.child import Child
from trivet_supervisor.client import SupervisorClient
from trivet_supervisor.direct_stop import KILL_MARGIN_S, EndedUnwritten, end_engines
from trivet_supervisor.engine_logs import tail
from trivet_supervisor.parent_pipe import CANNOT_START

logger = logging.getLogger(__name__)

LOOK_INTERVAL_S = 0.25
MAX_FIRST_FAILURES = 3  # of a child that has never been up
UP_TIMEOUT_S = 120.0  # until web and supervisor answer for the first time
ASK_INTERVAL_S = 5.0
DEAF_LIMIT_S = 60.0  # a slow disk may hold up a turn of the supervisor's loop, a crowd the web server
COMING_UP_LIMIT_S = 180.0  # of a child that has not answered since its start
WEB_END_TIMEOUT_S = 15.0
ENGINES_GO_ON = "engines that run are left to the next serve (`trivet stop --all` ends them)"
_STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)  # not SIGHUP under nohup


class Parent:
    """The process that an operator starts and stops."""

    def __init__(self, settings: Settings, clock: Callable[[], float] = time.monotonic) -> None:
        self._settings = settings
        self._clock = clock
        self._num_stop_requests = 0
        self._asked_s = clock()
        self._num_unanswered: Counter[str] = Counter()  # by child, in a row
        self._heard_pids: dict[str, int | None] = {}  # by child, whose answer was heard last
        self._pipe_lock = threading.RLock()  # a signal may come while its own thread holds it
        self._has_ended = False
        self.has_left_engines = False  # though a stop was requested
        self._wake, self._waker = os.pipe()
        os.set_blocking(self._waker, False)
        alive, self._alive = os.pipe()  # only this process holds the second end: that is what children watch
        self._alive_for_children = alive
        env = {**inherited_environment(), **settings_to_environment(settings)}
        logs, python = settings.paths.logs, sys.executable
        self.supervisor = Child(
            "supervisor",
            [python, "-P", "-m", "trivet_supervisor", "--parent-fd", str(alive)],
            env,
            logs / "supervisor.log",
            alive,
            clock,
        )
        self.web = Child(
            "web",
            [python, "-P", "-m", "trivet_supervisor.attached", str(alive), "trivet_web"],
            env,
            logs / "web.log",
            alive,
            clock,
        )
        self._client = SupervisorClient(settings.paths)

    @property
    def is_stopping(self) -> bool:
        return self._num_stop_requests > 0

    def request_stop(self) -> None:
        """From a signal handler or another thread. A second request does not wait for running requests.

        It does nothing when everything has ended already.
        """
        with self._pipe_lock:
            self._num_stop_requests += 1
            if not self._has_ended:
                os.write(self._waker, b"x")

    def run(self, on_up: Callable[[], None]) -> None:
        """Until told to stop; then drain and end everything. `on_up`: both children answer.

        Engines end where a stop was requested; after a failure they are left to the next serve.

        Raises: Unavailable where a child cannot be brought up, with the last lines of its log.
        """
        with self._signals():
            try:
                for child in (self.supervisor, self.web):
                    _start(child)
                self._wait_until_up()
                if not self._num_stop_requests:
                    on_up()
                while not self._num_stop_requests:
                    self._pause()
                    self._keep_children()
            finally:
                self._end_everything()

    # ---- up ----

    def _wait_until_up(self) -> None:
        deadline_s = self._clock() + UP_TIMEOUT_S
        while not self._num_stop_requests:
            self._pause(0.05)
            for child in (self.supervisor, self.web):
                code = child.keep()
                if code == CANNOT_START or (code is not None and child.num_failures >= MAX_FIRST_FAILURES):
                    raise _not_up(child, f"ended with exit code {code}")
            if self._supervisor_answers() and self._web_answers():
                return
            if self._clock() > deadline_s:
                raise _not_up(self.web, f"does not answer after {UP_TIMEOUT_S:.0f} s")

    def _supervisor_answers(self) -> bool:
        return self._client.status() is not None

    def _web_answers(self) -> bool:
        """With whatever certificate: it is this host's own process, and its files may just be renewed."""
        host, port = urlsplit(local_url(self._settings)).hostname or "", self._settings.port
        connection = http.client.HTTPConnection(host, port, timeout=2.0)
        if self._settings.tls_cert is not None:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
            context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
            connection = http.client.HTTPSConnection(host, port, timeout=2.0, context=context)
        try:
            connection.request("GET", "/health/live")
            return connection.getresponse().status > 0
        except (OSError, http.client.HTTPException):
            return False
        finally:
            connection.close()

    def _keep_children(self) -> None:
        self._look_after_children()
        for child in (self.supervisor, self.web):
            code = child.keep()
            if code is not None:
                logger.warning(
                    "%s ended with exit code %s; it is started again (%s)", child.name, code, child.log_file
                )

    def _look_after_children(self) -> None:
        """One that answered and answers nothing for a minute is replaced; a supervisor's engines are adopted.

        Asked so many times: after a time in which this process itself was stopped both are asked first. One
        that has not answered yet has longer: it may wait for its predecessor, or for the registry's upgrade.
        """
        if self._clock() - self._asked_s < ASK_INTERVAL_S:
            return
        self._asked_s = self._clock()
        for child, answers in ((self.supervisor, self._supervisor_answers), (self.web, self._web_answers)):
            child.bound_log()
            pid = child.pid
            if pid is None or answers():
                self._num_unanswered[child.name] = 0
                self._heard_pids[child.name] = pid
                continue
            self._num_unanswered[child.name] += 1
            limit_s = DEAF_LIMIT_S if pid == self._heard_pids.get(child.name) else COMING_UP_LIMIT_S
            if self._num_unanswered[child.name] * ASK_INTERVAL_S >= limit_s:
                logger.error("%s (pid %s) answers nothing: it is killed", child.name, child.pid)
                child.kill()
                self._num_unanswered[child.name] = 0

    # ---- down ----

    def _end_everything(self) -> None:
        try:
            if self._num_stop_requests:
                self._end_engines()
        finally:
            self.web.terminate(WEB_END_TIMEOUT_S)
            self.supervisor.terminate(WEB_END_TIMEOUT_S)
            with self._pipe_lock:
                self._has_ended = True
                for fd in (self._alive, self._alive_for_children, self._wake, self._waker):
                    os.close(fd)

    def _end_engines(self) -> None:
        """Web stays up meanwhile: the answers that are being drained pass through it."""
        told = self._num_stop_requests
        drain_s = self._settings.drain_timeout_s if told == 1 else 0.0
        if drain_s:
            limit = f"at most {drain_s:g} s; Ctrl-C again does not wait"
            print(f"finishing running requests ({limit})", file=sys.stderr, flush=True)
        is_asked = self._client.shut_down(drain_s) is not None
        if is_asked:
            deadline_s = self._clock() + drain_s + KILL_MARGIN_S
            drain_s = 0.0  # of what the supervisor should leave behind
            while self.supervisor.is_alive() and self._clock() < deadline_s:
                if self._num_stop_requests > told:  # Ctrl-C again
                    told, deadline_s = self._num_stop_requests, self._clock() + KILL_MARGIN_S
                    self._client.shut_down(0.0)
                self._pause()
        pid = self.supervisor.pid
        has_answered = is_asked or pid == self._heard_pids.get(self.supervisor.name)
        if self.supervisor.is_alive() and has_answered:  # not one that is still coming up
            logger.error("the supervisor has not ended the engines: it is replaced to do so")
        self.supervisor.terminate(timeout_s=2.0)
        try:
            # Where the supervisor had died; otherwise nothing is left to do.
            end_engines(self._settings, drain_s, lambda: self._num_stop_requests > told)
        except EndedUnwritten as error:
            logger.warning("%s", error)
        except TrivetError as error:
            self.has_left_engines = True
            logger.error("engines are left: %s", error)

    # ---- signals ----

    def _pause(self, timeout_s: float = LOOK_INTERVAL_S) -> None:
        if select.select([self._wake], [], [], timeout_s)[0]:
            os.read(self._wake, 4096)

    @contextmanager
    def _signals(self) -> Iterator[None]:
        """Handlers only count; the loop acts."""

        def count(number: int, frame: FrameType | None) -> None:
            self.request_stop()

        before = {
            number: signal.signal(number, count)
            for number in _STOP_SIGNALS
            if number != signal.SIGHUP or signal.getsignal(number) != signal.SIG_IGN
        }
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)


def _start(child: Child) -> None:
    """Raises: Unavailable where its log cannot be opened, or the host has no room for a process."""
    try:
        child.start()
    except OSError as error:
        raise Unavailable(
            f"{child.name} cannot be started: {error}; its log is {child.log_file}; {ENGINES_GO_ON}"
        ) from error


def _not_up(child: Child, what: str) -> TrivetError:
    return Unavailable(
        f"{child.name} {what}; {ENGINES_GO_ON}; last lines of {child.log_file}:\n{tail(child.log_file)}"
    )
