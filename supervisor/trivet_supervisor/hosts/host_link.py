"""This side of one other host: looks at its engines on a thread of its own, and carries signals to it."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec

from trivet import __version__
from trivet.errors import Unavailable
from trivet.messages import LaunchOrder
from trivet_supervisor.hosts.agent_calls import (
    Agent,
    Answer,
    Call,
    Discard,
    EngineSeen,
    Followed,
    Hello,
    Hosts,
    HostSilent,
    ListOrders,
    Look,
    Orders,
    Probe,
    Refused,
    Seen,
    Start,
    decode_answer,
    encode,
)
from trivet_supervisor.hosts.far_log import LogCopy

logger = logging.getLogger(__name__)

LOOK_INTERVAL_S = 0.3
HELLO_INTERVAL_S = 2.0  # where there is nothing to look at
GREET_INTERVAL_S = 5.0  # an agent may be replaced by one of another version
LOOK_TIMEOUT_S = 3.0
SETTLE_INTERVAL_S = 10.0
HANGS_S = 1.0  # past its own timeout; then a question counts as one that was not answered
MAX_ERRANDS = 1000  # of a host that does not come back
SILENT_S = 5.0  # without an answer for so long a host counts as unreachable


@dataclass(slots=True)
class Tracked:
    """One engine of the host."""

    lease: str
    log: LogCopy | None  # on this host; None: what it prints is not wanted
    seen: EngineSeen | None = None

    @property
    def has_come(self) -> bool:
        """It has ended, and all that it printed before is here."""
        if self.seen is None or self.seen.exit_code is None or self.seen.has_more_log:
            return False
        return self.log is None or not self.log.has_failed

    @property
    def has_ended(self) -> bool:
        """Also where the rest of its log cannot be written here now."""
        has_failed = self.log is not None and self.log.has_failed
        return self.has_come or (has_failed and self.seen is not None and self.seen.exit_code is not None)


class HostLink:
    """Thread-safe."""

    def __init__(
        self,
        host: str,
        hosts: Hosts,
        reaches_nobody: Callable[[], bool],
        log_positions: Path,
        settle: Callable[[str, Sequence[LaunchOrder], float], None] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Begins to look.

        Args:
            reaches_nobody: whether all hosts of this site are unreachable.
            log_positions: folder in which stands how far logs have come.
            settle: told from time to time of all that the host has, and when it was asked for that.
        """
        self.host = host
        self._hosts = hosts
        self._reaches_nobody = reaches_nobody
        self._log_positions = log_positions
        self._settle = settle
        self._settled_s: float | None = None
        self._clock = clock
        self._tracked: dict[str, Tracked] = {}
        self._terminate: set[str] = set()
        self._kill: set[str] = set()
        self._errands: list[Call] = []
        self._answered_s = clock()
        self._asked_s: float | None = None  # of the question that its thread waits with
        self._ahead_s: float | None = None  # of its clock before this one, at least
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
        if isinstance(call, Start) and self._ahead_s is not None:
            expires_s = self._clock() + self._ahead_s + timeout_s
            call = msgspec.structs.replace(call, expires_s=expires_s)
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
        now, asked_s = self._clock(), self._asked_s
        silent_s = now - self._answered_s
        why = self._silence  # a thread that was starved has asked nothing
        if not why and asked_s is not None and now - asked_s > LOOK_TIMEOUT_S + HANGS_S:
            why = f"a question to it has hung for {now - asked_s:.0f} s"
        if silent_s < SILENT_S or not why:
            return ""
        return f"host {self.host} has not answered for {silent_s:.0f} s ({why})"

    def cut_off(self) -> str:
        """As `EngineHandle.cut_off`."""
        if not self.unreachable() or not self._reaches_nobody():
            return ""
        return "no other host answers, either: it may be this one that is cut off"

    def track(self, lease: str, log_file: Path | None) -> Tracked:
        """Look at it from now on, until it has ended or is abandoned."""
        with self._lock:
            tracked = self._tracked.get(lease)
            if tracked is None:
                log = None if log_file is None else LogCopy(log_file, self._log_positions / f"{lease}.json")
                tracked = self._tracked[lease] = Tracked(lease, log)
        self._wake.set()
        return tracked

    def later(self, call: Call) -> None:
        """Ask as soon as the host answers, without waiting for that; a refused discard is asked again."""
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
                self._list_orders()
            except Unavailable as error:
                if not self._silence:
                    logger.warning("%s", error)
                self._silence = str(error)
            except Exception as error:  # a border: without this thread nothing is seen of the host any more
                self._silence = f"{type(error).__name__}: {error}"
                logger.exception("host=%s cannot be looked at", self.host)
            busy = self._tracked or self._kill or self._terminate
            self._wake.wait(LOOK_INTERVAL_S if busy else HELLO_INTERVAL_S)
            if self._silence and not self._is_closing:
                time.sleep(LOOK_INTERVAL_S)

    def _greet(self) -> None:
        answer = self._ask(Hello(), LOOK_TIMEOUT_S)
        if not isinstance(answer, Agent):
            raise Unavailable(f"host {self.host} does not say its version: {answer}")
        if answer.clock_s:
            self._ahead_s = answer.clock_s - self._clock()
        is_news = answer.version != self._version
        self._version, self._greeted_s = answer.version, self._clock()
        if is_news and self.refusal:
            logger.error("%s", self.refusal)

    def _look(self) -> None:
        with self._lock:
            tracked = list(self._tracked.values())
            terminate, kill = set(self._terminate), set(self._kill)
        followed = [
            Followed(one.lease, one.log.position) if one.log else Followed(one.lease) for one in tracked
        ]
        answer = self._ask(Look(followed, sorted(terminate), sorted(kill)), LOOK_TIMEOUT_S)
        if not isinstance(answer, Seen):  # of another version, perhaps: nothing is known of its engines
            self._version = ""
            raise Unavailable(f"host {self.host} does not tell of its engines: {answer}")
        self._answered_s, self._silence = self._clock(), ""
        for one in tracked:
            if (seen := answer.engines.get(one.lease)) is not None:
                if one.log is not None:
                    one.log.append(seen.log, seen.position)
                one.seen = seen
        with self._lock:
            self._terminate -= terminate
            self._kill -= kill
            for one in tracked:
                if one.has_come:
                    self._tracked.pop(one.lease, None)
                    if one.log is not None:
                        one.log.forget()
        if any(one.seen is not None and one.seen.has_more_log and not one.has_ended for one in tracked):
            self._wake.set()

    def _run_errands(self) -> None:
        with self._lock:
            errands, self._errands = self._errands, []
            waiting = self._tracked.keys() | self._kill
        left: list[Call] = []
        for call in errands:
            if isinstance(call, Discard) and call.lease in waiting:  # its log is there, or a process of it
                left.append(call)
                continue
            try:
                answer = self._ask(call, LOOK_TIMEOUT_S)
            except Unavailable:
                left += errands[errands.index(call) :]
                break
            self._settled_s = None
            if isinstance(answer, Refused):
                logger.debug("host=%s %s", self.host, answer.reason)
                left.append(call)
        with self._lock:
            self._errands = (left + self._errands)[-MAX_ERRANDS:]

    def _list_orders(self) -> None:
        now = self._clock()
        if self._settle is None or (
            self._settled_s is not None and now - self._settled_s < SETTLE_INTERVAL_S
        ):
            return
        answer = self._ask(ListOrders(), LOOK_TIMEOUT_S)
        if isinstance(answer, Orders):
            self._settled_s = now
            self._settle(self.host, answer.orders, now)

    def _ask(self, call: Call, timeout_s: float) -> Answer:
        """Raises: HostSilent; Unavailable for what this version cannot read."""
        is_own = threading.current_thread() is self._thread
        if is_own:
            self._asked_s = self._clock()
        try:
            message = self._hosts.call(self.host, encode(call), timeout_s)
        finally:
            if is_own:
                self._asked_s = None
        try:
            return decode_answer(message)
        except msgspec.DecodeError as error:
            raise Unavailable(f"host {self.host} answers as another version does: {error}") from error
