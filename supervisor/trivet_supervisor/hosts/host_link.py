"""This side of one other host: looks at its engines on a thread of its own, and carries signals to it."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import msgspec

from trivet import __version__
from trivet.engine.log_bound import LogBound
from trivet.errors import Unavailable
from trivet_supervisor.hosts.agent_calls import (
    Agent,
    Answer,
    Call,
    EngineSeen,
    Followed,
    Hello,
    Hosts,
    HostSilent,
    Look,
    Probe,
    Seen,
    Start,
    decode_answer,
    encode,
)

logger = logging.getLogger(__name__)

LOOK_INTERVAL_S = 0.3
HELLO_INTERVAL_S = 2.0  # where there is nothing to look at
GREET_INTERVAL_S = 5.0  # an agent may be replaced by one of another version
LOOK_TIMEOUT_S = 3.0
SILENT_S = 5.0  # without an answer for so long a host counts as unreachable


@dataclass(slots=True)
class Tracked:
    """One engine of the host."""

    lease: str
    log_file: Path | None  # on this host; None: what it prints is not wanted
    log_offset: int = 0  # in its log over there
    seen: EngineSeen | None = None

    @property
    def has_ended(self) -> bool:
        """With all that it printed before."""
        return self.seen is not None and self.seen.exit_code is not None and not self.seen.has_more_log


class HostLink:
    """Thread-safe."""

    def __init__(
        self,
        host: str,
        hosts: Hosts,
        reaches_nobody: Callable[[], bool],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Args: reaches_nobody: whether all hosts of this site are unreachable."""
        self.host = host
        self._hosts = hosts
        self._reaches_nobody = reaches_nobody
        self._clock = clock
        self._tracked: dict[str, Tracked] = {}
        self._terminate: set[str] = set()
        self._kill: set[str] = set()
        self._errands: list[Call] = []
        self._answered_s = clock()
        self._silence = ""  # of the last call
        self._version = ""  # that answers there; empty: not known yet
        self._greeted_s = clock()
        self._lock = threading.Lock()
        self._wake = threading.Event()
        self._is_closing = False
        self._thread = threading.Thread(target=self._run, name=f"host-{host}", daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._is_closing = True
        self._wake.set()
        self._thread.join(LOOK_TIMEOUT_S + 1.0)

    # ---- from any thread ----

    def call(self, call: Call, timeout_s: float) -> Answer:
        """Raises: HostSilent; Unavailable where another version would have to start or plan something."""
        if self.unreachable():
            raise HostSilent(self.unreachable())  # its thread finds out when it is back
        if not self._version:
            self._greet()
        if isinstance(call, Start | Probe) and self._version != __version__:
            raise Unavailable(self.refusal)
        return self._ask(call, timeout_s)

    @property
    def refusal(self) -> str:
        """Why nothing is started there; empty where it may be, or where nobody has answered yet."""
        if self._version in ("", __version__):
            return ""
        return (
            f"host {self.host} has Trivet {self._version} and this supervisor is Trivet {__version__}; "
            f"install {__version__} there"
        )

    def unreachable(self) -> str:
        """As `EngineHandle.unreachable`."""
        silent_s = self._clock() - self._answered_s
        if silent_s < SILENT_S or not self._silence:  # a thread that was starved has asked nothing
            return ""
        return f"host {self.host} has not answered for {silent_s:.0f} s ({self._silence})"

    def cut_off(self) -> str:
        """As `EngineHandle.cut_off`."""
        if not self.unreachable() or not self._reaches_nobody():
            return ""
        return "no other host answers, either: it may be this one that is cut off"

    def track(self, lease: str, log_file: Path | None) -> Tracked:
        """Look at it from now on, until it has ended or is abandoned."""
        offset = log_file.stat().st_size if log_file is not None and log_file.exists() else 0
        with self._lock:
            tracked = self._tracked.setdefault(lease, Tracked(lease, log_file, offset))
        self._wake.set()
        return tracked

    def later(self, call: Call) -> None:
        """Ask without waiting for the answer, once; a host that is silent then is not asked."""
        with self._lock:
            self._errands.append(call)
        self._wake.set()

    def signal(self, lease: str, *, is_kill: bool) -> None:
        """With the next look that is answered."""
        with self._lock:
            (self._kill if is_kill else self._terminate).add(lease)
        self._wake.set()

    def untrack(self, lease: str) -> None:
        """Look at it no more; signals that were not delivered still are."""
        with self._lock:
            self._tracked.pop(lease, None)

    # ---- the thread ----

    def _run(self) -> None:
        while not self._is_closing:
            self._wake.clear()
            try:
                if not self._version or self._clock() - self._greeted_s > GREET_INTERVAL_S:
                    self._greet()
                self._look()
                self._run_errands()
            except Unavailable as error:
                if not self._silence:
                    logger.warning("%s", error)
                self._silence = str(error)
            except Exception as error:  # a border: without this thread nothing is seen of the host any more
                self._silence = f"{type(error).__name__}: {error}"
                logger.exception("host=%s cannot be looked at", self.host)
            busy = self._tracked or self._kill or self._terminate or self._errands
            self._wake.wait(LOOK_INTERVAL_S if busy else HELLO_INTERVAL_S)
            if self._silence and not self._is_closing:
                time.sleep(LOOK_INTERVAL_S)

    def _greet(self) -> None:
        answer = self._ask(Hello(), LOOK_TIMEOUT_S)
        if not isinstance(answer, Agent):
            raise Unavailable(f"host {self.host} does not say its version: {answer}")
        is_news = answer.version != self._version
        self._version, self._greeted_s = answer.version, self._clock()
        if is_news and self.refusal:
            logger.error("%s", self.refusal)

    def _look(self) -> None:
        with self._lock:
            tracked = list(self._tracked.values())
            terminate, kill = set(self._terminate), set(self._kill)
        followed = [Followed(one.lease, one.log_offset) for one in tracked]
        answer = self._ask(Look(followed, sorted(terminate), sorted(kill)), LOOK_TIMEOUT_S)
        if not isinstance(answer, Seen):  # of another version, perhaps: nothing is known of its engines
            self._version = ""
            raise Unavailable(f"host {self.host} does not tell of its engines: {answer}")
        self._answered_s, self._silence = self._clock(), ""
        for one in tracked:
            if (seen := answer.engines.get(one.lease)) is not None:
                _append(one, seen)
                one.log_offset, one.seen = seen.log_offset, seen
        with self._lock:
            self._terminate -= terminate
            self._kill -= kill
            for one in tracked:
                if one.has_ended:
                    self._tracked.pop(one.lease, None)
        if any(one.seen is not None and one.seen.has_more_log for one in tracked):
            self._wake.set()

    def _run_errands(self) -> None:
        with self._lock:
            errands, self._errands = self._errands, []
        for call in errands:
            self._ask(call, LOOK_TIMEOUT_S)

    def _ask(self, call: Call, timeout_s: float) -> Answer:
        """Raises: HostSilent; Unavailable for what this version cannot read."""
        message = self._hosts.call(self.host, encode(call), timeout_s)
        try:
            return decode_answer(message)
        except msgspec.DecodeError as error:
            raise Unavailable(f"host {self.host} answers as another version does: {error}") from error


def _append(one: Tracked, seen: EngineSeen) -> None:
    """What it has printed since, bounded as the engine bounds its own log."""
    if one.log_file is None or not seen.log:
        return
    try:
        one.log_file.parent.mkdir(parents=True, exist_ok=True)
        with one.log_file.open("ab") as log:
            log.write(seen.log)
            log.flush()
            LogBound(log.fileno()).enforce()
    except OSError as error:  # a full disk: the engine goes on, and its own host has the log
        logger.warning("log=%s cannot be written: %s", one.log_file, error)
