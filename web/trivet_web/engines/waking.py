"""Requests for a deployment that is unloaded: they wake it and wait, each in its own mailbox.

To who reads the answer it is an engine that takes its time: a stream gets its pings, a client that hangs up
is noticed, and a deadline ends it. When an instance is ready the mailbox is told, and the reader sends the
sequence there.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

from sqlalchemy.exc import SQLAlchemyError

from trivet.errors import DeadlinePassed, TrivetError, Unavailable
from trivet_web.engines.mailbox import Mailbox
from trivet_web.engines.routing import Deployed, Router

logger = logging.getLogger(__name__)

LIMIT_S = 900.0  # for a request without a deadline: a large model from a slow disk, kernels built first
LOOK_INTERVAL_S = 0.1
WAKE_INTERVAL_S = 1.0  # between two words to the registry about one deployment
GIVEN_UP = frozenset({"failed"})


class InstanceReady(TrivetError):
    """What was waited for is there: the sequence can be sent."""

    status, code = 503, "instance_ready"


@dataclass(frozen=True, slots=True, eq=False)  # each is itself: thousands may wait, for the same
class _Waiting:
    deployment: str
    mailbox: Mailbox
    choice: int
    until_s: float


class Waker:
    """Its thread lives while anything waits. Thread-safe."""

    def __init__(
        self,
        router: Router,
        wake: Callable[[str], None],
        tell: Callable[[Mailbox, TrivetError, int | None], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Args:

        wake: have a deployment loaded; it may raise.
        tell: put a loss into a mailbox (`Relay.tell`).
        """
        self._router = router
        self._put = tell
        self._wake = wake
        self._clock = clock
        self._lock = threading.Lock()
        self._waiting: dict[Mailbox, dict[int, _Waiting]] = {}  # in the order of their coming, by choice
        self._woken_s: dict[str, float] = {}
        self._thread: threading.Thread | None = None
        self._ending: TrivetError | None = None  # of every request from now on

    def wait(self, deployment: str, mailbox: Mailbox, choice: int, deadline_s: float | None) -> None:
        """Tell the mailbox when an instance is ready (`InstanceReady`), or why none will be."""
        until_s = self._clock() + LIMIT_S if deadline_s is None else deadline_s
        with self._lock:
            error = self._ending or self._awaken()
            if error is None:
                one = _Waiting(deployment, mailbox, choice, until_s)
                self._waiting.setdefault(mailbox, {})[choice] = one
        if error is not None:
            mailbox.fail(error)

    def forget(self, mailbox: Mailbox) -> None:
        """Its reader has gone."""
        with self._lock:
            self._waiting.pop(mailbox, None)

    def end_all(self, error: TrivetError) -> None:
        """Fail every request that waits, and those that come later. Any thread."""
        with self._lock:
            self._ending = error
            ended, self._waiting = self._waiting, {}
        for mailbox in ended:
            mailbox.fail(error)

    def _awaken(self) -> TrivetError | None:
        """With the lock held: its thread lives. Returns: why it cannot."""
        if self._thread is None:
            thread = threading.Thread(target=self._run, name="waker", daemon=True)
            try:
                thread.start()  # it waits for the lock
            except RuntimeError as error:  # a limit of the account, or of the container
                return Unavailable(f"no thread can wait for the model: {error}; try again")
            self._thread = thread
        return None

    def _run(self) -> None:
        while True:
            with self._lock:
                waiting = [one for choices in self._waiting.values() for one in choices.values()]
                if not waiting:
                    self._thread = None
                    return
            by_name: dict[str, list[_Waiting]] = {}
            for one in waiting:
                by_name.setdefault(one.deployment, []).append(one)
            for name, those in by_name.items():
                self._look_safely(name, those)
            time.sleep(LOOK_INTERVAL_S)

    def _look_safely(self, name: str, waiting: list[_Waiting]) -> None:
        try:
            self._look(name, waiting)
        except SQLAlchemyError as error:  # a registry that is away: each waits until its deadline
            logger.warning("waiting=%d the registry cannot be read: %s", len(waiting), error)
        except Exception:  # a border like a loop's: without this thread nobody is told
            logger.exception("model=%s waiting=%d", name, len(waiting))

    def _look(self, name: str, waiting: list[_Waiting]) -> None:
        now = self._clock()
        deployed = self._router.table(fresh=True).get(name)
        if deployed is None:
            self._tell(waiting, Unavailable(f"model {name!r} was stopped while it was waited for"))
        elif self._router.has_instance(deployed):
            self._tell(waiting, InstanceReady(f"model {name!r} is ready"))
        elif (reason := self._why_never(deployed)) is not None:
            self._tell(waiting, Unavailable(f"model {name!r} cannot be loaded: {reason}"))
        else:
            late = [one for one in waiting if now >= one.until_s]
            why = self._router.why_not(deployed)
            self._tell(late, DeadlinePassed(f"model {name!r} was not loaded before the deadline: {why}"))
            if deployed.is_asleep and now - self._woken_s.get(name, -WAKE_INTERVAL_S) >= WAKE_INTERVAL_S:
                self._woken_s[name] = now
                self._wake(name)

    def _why_never(self, deployed: Deployed) -> str | None:
        instances = deployed.instances
        if deployed.replicas == 0:
            return self._router.why_not(deployed)
        if deployed.is_asleep or not instances or any(i.state not in GIVEN_UP for i in instances):
            return None
        return instances[0].reason or "it failed"

    def _tell(self, waiting: list[_Waiting], error: TrivetError) -> None:
        with self._lock:
            told = [one for one in waiting if self._take(one)]
        for one in told:  # what is no readiness ends the whole request: another try would wait again
            self._put(one.mailbox, error, one.choice if isinstance(error, InstanceReady) else None)

    def _take(self, one: _Waiting) -> bool:
        """With the lock held: whether it still waited."""
        choices = self._waiting.get(one.mailbox, {})
        if choices.get(one.choice) is not one:
            return False
        del choices[one.choice]
        if not choices:
            del self._waiting[one.mailbox]
        return True
