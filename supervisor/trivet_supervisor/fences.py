"""Engines that were given up though nobody knows that they have ended: their hosts are asked until they have.

Each is a row of the registry, so whichever supervisor there is goes on with it. One whose host answers is
taken back where nothing has taken its place: it has its model loaded. Else it is ended, and only when it is
gone its launcher gives back what it held.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

from trivet.errors import Unavailable
from trivet.launching import CALL_LIMIT_S, EngineHandle
from trivet_registry.deployments_store import RUNNING
from trivet_registry.events_store import record_event
from trivet_registry.fences_store import list_fences, remove_fence
from trivet_registry.instance_state import PROCESS_STATES, InstanceState
from trivet_registry.tables import Fence, Instance, utc_now
from trivet_supervisor.means import Means
from trivet_supervisor.threaded_call import ThreadedCall

logger = logging.getLogger(__name__)

PATIENCE_S = 0.0  # the next turn takes the answer
ASK_INTERVAL_S = 1.0
REPEAT_KILL_S = 5.0
# Its host is gone for good, or is found to have an orphan should it ever come back (`orphans`).
FORGOTTEN_AFTER = timedelta(days=1)

S = InstanceState
_WITHOUT_PROCESS = (S.PENDING, S.PLACING, S.FAILED)

TakeBack = Callable[[Instance, Fence, EngineHandle], None]


@dataclass(slots=True)
class _Asked:
    """What is known of one."""

    fence: Fence
    call: ThreadedCall[EngineHandle | None] | None = None
    ask_s: float = 0.0
    handle: EngineHandle | None = None  # it lives, or did when its host was asked
    silence: str = ""  # why its host could not tell, when it was asked last
    killed_s: float | None = None  # since the first SIGKILL
    repeat_s: float = 0.0

    def silent_because(self) -> str:
        """Empty where its host answers, or has not been asked."""
        return self.silence if self.handle is None else self.handle.unreachable()

    def may_return(self, instance: Instance) -> bool:
        """Whether nothing has taken its place, and something is to."""
        deployment = instance.deployment
        is_wanted = deployment.desired == RUNNING and not deployment.is_asleep
        is_able = self.fence.engine is not None and self.killed_s is None
        return is_wanted and is_able and instance.instance_state in _WITHOUT_PROCESS

    def hangs(self, now: float) -> bool:
        """Against the contract of launchers."""
        return self.call is not None and now - self.call.since_s > CALL_LIMIT_S


class Fences:
    """Of one site."""

    def __init__(self, means: Means) -> None:
        self._means = means
        self._asked: dict[str, _Asked] = {}  # by lease
        self._is_stale = True

    def reload(self) -> None:
        """One was made."""
        self._is_stale = True

    def has_news(self) -> bool:
        """Whether a host has answered since the last turn."""
        return any(one.call is not None and not one.call.is_under_way() for one in self._asked.values())

    def holds(self, instance_id: str, host: str) -> bool:
        """Whether an engine of the instance may live on that host, and it is about to be known."""
        return any(
            one.fence.instance_id == instance_id and one.fence.host == host and one.fence.engine is not None
            for one in self._asked.values()
        )

    def turn(
        self,
        instances: Iterable[Instance],
        moved: Collection[str],
        is_shutting_down: bool,
        take_back: TakeBack,
    ) -> set[str]:
        """Ask and act, one step with each. Returns the instances that were taken back.

        Args:
            instances: all that have not come to their end.
            moved: of these, the ids of those whose rows are other by now: the next turn sees them.
        """
        if self._is_stale:
            self._load()
        if not self._asked:
            return set()
        rows = {instance.id: instance for instance in instances}
        taken = set()
        for one in list(self._asked.values()):
            instance = rows.get(one.fence.instance_id)
            self._ask(one)
            if one.handle is None or one.handle.unreachable():
                continue
            if one.handle.exit_code() is not None:
                self._end(one)
            elif one.fence.instance_id in moved or one.fence.instance_id in taken or _is_starting(instance):
                continue
            elif instance is not None and not is_shutting_down and one.may_return(instance):
                take_back(instance, one.fence, one.handle)
                del self._asked[one.fence.lease]
                taken.add(instance.id)
            else:
                self._kill(one)
        return taken

    def are_settled(self, kill_s: float) -> bool:
        """Whether waiting helps no more: hosts are silent, or SIGKILL has not helped for `kill_s`."""
        if self._is_stale:
            self._load()
        now = self._means.clock()
        return all(
            one.silent_because()
            or one.hangs(now)
            or (one.killed_s is not None and now - one.killed_s > kill_s)
            for one in self._asked.values()
        )

    # ---- one ----

    def _load(self) -> None:
        with self._means.database.reading() as session:
            rows = {fence.lease: fence for fence in list_fences(session)}
        self._asked = {lease: self._asked.get(lease) or _Asked(fence) for lease, fence in rows.items()}
        self._is_stale = False

    def _ask(self, one: _Asked) -> None:
        """Whether it lives; on a thread, as its host may be slow."""
        now, fence = self._means.clock(), one.fence
        if one.handle is not None:
            return
        if one.call is None:
            if now < one.ask_s:
                return
            log_file = (fence.engine or {}).get("log_file")
            launcher, file = self._means.launcher, Path(log_file) if log_file else None
            one.call = ThreadedCall("fence", lambda: launcher.find(fence.lease, file, fence.host), now)
        if one.call.is_under_way(PATIENCE_S):
            return
        call, one.call = one.call, None
        one.ask_s = now + ASK_INTERVAL_S
        try:
            one.handle = call.result()
        except Unavailable as error:
            one.silence = str(error)
            if utc_now() - fence.since > FORGOTTEN_AFTER:
                self._remove(one, f"{described(fence)} is asked for no more: {error}")
            return
        except Exception as error:  # a stranger's launcher: nothing is known, and the others go on
            if not one.silence:
                logger.exception("lease=%s cannot be asked for", fence.lease[:8])
            one.silence = f"{type(error).__name__}: {error}"
            return
        one.silence = ""
        if one.handle is None:
            self._end(one)

    def _kill(self, one: _Asked) -> None:
        now = self._means.clock()
        if one.handle is None or now < one.repeat_s:
            return
        logger.warning(
            "lease=%s pid=%d was given up: it is ended", one.fence.lease[:8], one.handle.identity.pid
        )
        one.killed_s = now if one.killed_s is None else one.killed_s
        one.repeat_s = now + REPEAT_KILL_S
        one.handle.kill()

    def _end(self, one: _Asked) -> None:
        """It is gone: now its launcher may give back what it held."""
        fence = one.fence
        how = "was ended" if one.killed_s is not None else "had ended"
        is_news = fence.pid is not None or one.handle is not None
        self._remove(one, f"{_named(fence.host)} answers again: {described(fence)} {how}" if is_news else "")
        try:
            self._means.launcher.discard(fence.instance_id, fence.lease)
        except Exception:  # a border, as in `Endings`
            logger.exception("lease=%s what it left cannot be discarded", fence.lease[:8])

    def _remove(self, one: _Asked, reason: str) -> None:
        fence = one.fence
        with self._means.database.session() as session:
            remove_fence(session, fence.lease)
            if reason:
                record_event(
                    session, "supervisor", reason, deployment=fence.deployment, instance=fence.instance_id
                )
        self._asked.pop(fence.lease, None)


def described(fence: Fence) -> str:
    """For a sentence."""
    pid = f"pid {fence.pid}" if fence.pid is not None else "an engine"
    return f"{pid} ({fence.deployment}, given up since {fence.since:%Y-%m-%d %H:%M:%S})"


def _named(host: str) -> str:
    return f"host {host}" if host else "this host"


def why_unconfirmed(fences: Sequence[Fence]) -> str:
    """What cannot be said of a site that has been stopped; empty where nothing is left."""
    if not fences:
        return ""
    by_host: dict[str, list[str]] = {}
    for fence in fences:
        by_host.setdefault(fence.host, []).append(described(fence))
    told = "; ".join(
        f"{_named(host)} has not said that {', '.join(who)} ended" for host, who in by_host.items()
    )
    again = (
        "that is asked again, and what is left is ended, by the next `trivet serve` or `trivet stop --all`"
    )
    return f"{told}: {again}"


def _is_starting(instance: Instance | None) -> bool:
    """Whether its successor was begun and nobody knows yet whether it was started."""
    return instance is not None and instance.instance_state in PROCESS_STATES and instance.pid is None
