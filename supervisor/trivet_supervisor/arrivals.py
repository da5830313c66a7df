"""How an engine comes to be followed: it is started, found again, or taken back.

What asks a launcher may wait for another host, so it has a thread of its own and the row is the state: one
that says `starting` stays so until its launcher has answered, and others go on meanwhile.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping, MutableMapping
from dataclasses import dataclass
from pathlib import Path

import msgspec
from sqlalchemy.exc import SQLAlchemyError

from trivet.endpoints import Endpoints, local_endpoints
from trivet.engine.placement import Placement
from trivet.errors import Unavailable
from trivet.launching import CALL_LIMIT_S, EngineHandle, Launcher, ProcessIdentity
from trivet_registry.events_store import record_event
from trivet_registry.fences_store import remove_fence
from trivet_registry.instance_state import InstanceState
from trivet_registry.instances_store import move_instance, update_instance
from trivet_registry.tables import Fence, Instance
from trivet_supervisor.endings import Endings
from trivet_supervisor.instance_watch import Watched
from trivet_supervisor.means import Means
from trivet_supervisor.memory_return import ended_unseen
from trivet_supervisor.other_home import original_home
from trivet_supervisor.process_rows import identified, named, processes_of
from trivet_supervisor.starting import prepare_start
from trivet_supervisor.threaded_call import ThreadedCall

logger = logging.getLogger(__name__)

PATIENCE_S = 0.25  # for one answer in one turn: here a start takes milliseconds
FAR_PATIENCE_S = 0.0  # a host that is slow must not hold up the turn for each of its engines
ASK_AGAIN_S = 1.0  # where nobody could tell
REPEAT_KILL_S = 1.0

S = InstanceState


@dataclass(frozen=True, slots=True)
class _Start:
    """One that its launcher has not answered yet."""

    lease: str
    host: str
    call: ThreadedCall[EngineHandle]


@dataclass(frozen=True, slots=True)
class _Find:
    """The same."""

    lease: str
    run_dir: str | None
    call: ThreadedCall[EngineHandle | None]


class Arrivals:
    """Of instances whose row says that a process may exist, and that nobody here follows yet."""

    def __init__(self, means: Means, endings: Endings, watched: MutableMapping[str, Watched]) -> None:
        """Args: watched: by instance, where those go that are followed."""
        self._means = means
        self._endings = endings
        self._watched = watched
        self._starts: dict[str, _Start] = {}
        self._finds: dict[str, _Find] = {}
        self._unknown_s: dict[str, float] = {}  # since when nobody can tell
        self._ask_s: dict[str, float] = {}  # when to ask again

    def start(self, instance: Instance, placement: Placement, launch_env: Mapping[str, str]) -> None:
        """Begin the next attempt of a placed instance; its row is `starting` afterwards."""
        try:
            call, lease = prepare_start(self._means, instance, placement, launch_env)
        except SQLAlchemyError:
            raise  # the row is as before: the turn is tried again
        except Exception as error:
            logger.exception("instance=%s no process could be started", instance.id)
            self._endings.not_spawned(instance.id, _failure(error))
            return
        threaded = ThreadedCall("start", call, self._means.clock())
        start = self._starts[instance.id] = _Start(lease, placement.devices[0].host, threaded)
        self._take_start(instance.id, start, S.STARTING)

    def take(self, instance: Instance) -> bool:
        """Follow it as soon as it is there, or write down that it is not. True if its row moved."""
        start = self._starts.get(instance.id)
        if start is not None and start.lease == instance.lease:
            return self._take_start(instance.id, start, instance.instance_state)
        return self._adopt(instance)

    def has_news(self) -> bool:
        """Whether a launcher has answered since."""
        return any(not start.call.is_under_way() for start in self._starts.values()) or any(
            not find.call.is_under_way() for find in self._finds.values()
        )

    def await_starts(self, timeout_s: float) -> None:
        """Wait until none is under way: what is spawned later is found by nobody who looks now."""
        deadline_s = time.monotonic() + timeout_s
        for start in self._starts.values():
            start.call.is_under_way(deadline_s - time.monotonic())

    def follow_unwritten(self) -> bool:
        """Follow what has been answered though no row can say so. True while answers are waited for."""
        waiting = False
        asked: dict[str, _Start | _Find] = {**self._finds, **self._starts}
        for instance_id, one in asked.items():
            if one.call.is_under_way():
                waiting |= self._means.clock() - one.call.since_s <= CALL_LIMIT_S
                continue
            self._starts.pop(instance_id, None)
            self._finds.pop(instance_id, None)
            try:
                handle = one.call.result()
            except Exception as error:  # as in a turn; here nothing is left to be said of it
                logger.warning("instance=%s is not followed: %s", instance_id, error)
                continue
            if handle is not None:
                run_dir = one.run_dir if isinstance(one, _Find) else None
                self._watch(instance_id, handle, one.lease, S.STOPPING, run_dir, None)
        return waiting

    def is_doubtful(self, instance_id: str) -> bool:
        """Whether its launcher has not said, or cannot say, whether it runs."""
        return instance_id in self._starts or instance_id in self._unknown_s

    def take_back(self, instance: Instance, fence: Fence, handle: EngineHandle) -> None:
        """What had been given up lives, and nothing has taken its place."""
        reason = f"its host answers again, and nothing has taken its place: {named(handle.identity)} goes on"
        engine = {**(fence.engine or {}), **identified(handle.identity)}
        with self._means.database.session() as session:
            if instance.instance_state is S.FAILED:
                move_instance(session, instance.id, S.PENDING, reason)
            if instance.instance_state is not S.PLACING:
                move_instance(session, instance.id, S.PLACING, reason)
            now_s = self._means.clock()
            taken = move_instance(
                session,
                instance.id,
                S.STARTING,
                reason,
                entered_s=now_s,
                exit_code=None,
                ended_at=None,
                **engine,
            )
            remove_fence(session, fence.lease)
        self._endings.forget(instance.id)
        self._follow(instance.id, handle, fence.lease, S.STARTING, taken)

    # ---- starts ----

    def _take_start(self, instance_id: str, start: _Start, state: InstanceState) -> bool:
        limit_s = CALL_LIMIT_S if start.host else self._means.limits.starting_s
        if start.call.is_under_way(_patience_s(start.host)):
            if self._means.clock() - start.call.since_s <= limit_s:
                return False
            self._endings.not_spawned(
                instance_id, f"its launcher has not answered for {limit_s:g} s", start.host
            )
            start.call.leave(_end_late)
            del self._starts[instance_id]
            return True
        try:
            handle = start.call.result()
        except Unavailable as error:
            self._endings.not_spawned(instance_id, str(error), start.host)
        except Exception as error:  # a stranger's launcher: the row says `starting`, and nothing follows
            logger.exception("instance=%s no process could be started", instance_id)
            self._endings.not_spawned(instance_id, _failure(error), start.host)
        else:
            del self._starts[instance_id]
            self._follow(instance_id, handle, start.lease, state, None)
            return True
        del self._starts[instance_id]  # last: a registry that cannot be written is tried again
        return True

    # ---- adoption ----

    def _adopt(self, instance: Instance) -> bool:
        """Take over an engine that outlived its supervisor, or write down that it did not.

        False where neither can be told yet: its host does not answer, or is another launcher's.
        """
        elsewhere = None if instance.host else original_home(instance.run_dir, self._means.settings)
        if elsewhere is not None:
            self._endings.of_other_home(instance.id, elsewhere)
            return True
        call = self._asked(instance)
        if call is None:
            return False
        if call.is_under_way(_patience_s(instance.host or "")):
            if self._means.clock() - call.since_s <= CALL_LIMIT_S:
                return False
            return self._is_unknown(instance, f"its launcher has not said for {CALL_LIMIT_S:g} s where it is")
        del self._finds[instance.id]
        try:
            handle = call.result()
        except Unavailable as error:
            return self._is_unknown(instance, str(error))
        was_unknown = self._unknown_s.pop(instance.id, None) is not None
        if handle is None or instance.lease is None:
            gone = ended_unseen(instance)
            if gone is None:
                self._endings.ended_unseen(instance)
            else:  # its device may not have its memory back
                self._follow(instance.id, gone, instance.lease or "", instance.instance_state, instance)
            return True
        self._take_over(instance, handle, instance.lease, was_unknown)
        return True

    def _asked(self, instance: Instance) -> ThreadedCall[EngineHandle | None] | None:
        """The look for it; None while its launcher, which could not tell, is not asked again yet."""
        find, now = self._finds.get(instance.id), self._means.clock()
        if find is not None and find.lease != (instance.lease or ""):
            find = None  # of the attempt before
        if find is None and now >= self._ask_s.get(instance.id, 0.0):
            launcher = self._means.launcher
            call = ThreadedCall("find", lambda: _find(launcher, instance), now)
            find = self._finds[instance.id] = _Find(instance.lease or "", instance.run_dir, call)
        return None if find is None else find.call

    def _take_over(self, instance: Instance, handle: EngineHandle, lease: str, was_unknown: bool) -> None:
        self._follow(instance.id, handle, lease, instance.instance_state, instance)
        if not handle.identity.host:  # elsewhere it may have outlived the clock of this host, too
            self._watched[instance.id].resume(instance.entered_s, self._means.clock())
        told = handle.unreachable() or f"adopted {named(handle.identity)}, which is {instance.state}"
        with self._means.database.session() as session:
            update_instance(session, instance.id, processes=processes_of(handle))
            if was_unknown:
                update_instance(session, instance.id, reason=told)
            record_event(
                session,
                "supervisor",
                told,
                deployment=instance.deployment.name,
                instance=instance.id,
            )

    def _is_unknown(self, instance: Instance, why: str) -> bool:
        """It stays what it is; one that shall end counts as ended after the time that an end may take."""
        now = self._means.clock()
        self._ask_s[instance.id] = now + ASK_AGAIN_S
        since_s = self._unknown_s.setdefault(instance.id, now)
        limits = self._means.limits
        is_to_end = instance.instance_state in (S.DRAINING, S.STOPPING, S.LOST)
        if is_to_end and now - since_s > limits.stop_s + limits.terminate_s + limits.kill_s:
            self._endings.unconfirmed(instance.id, why)
            del self._unknown_s[instance.id]
            self._finds.pop(instance.id, None)  # a fence asks from here on
            return True
        if why != instance.reason:
            with self._means.database.session() as session:
                update_instance(session, instance.id, reason=why)
                record_event(
                    session, "instance", why, deployment=instance.deployment.name, instance=instance.id
                )
        return False

    # ---- followed ----

    def _follow(
        self,
        instance_id: str,
        handle: EngineHandle,
        lease: str,
        state: InstanceState,
        adopted: Instance | None,
    ) -> None:
        run_dir, endpoints = (adopted.run_dir, adopted.endpoints) if adopted else (None, None)
        self._watch(
            instance_id,
            handle,
            lease,
            state,
            run_dir,
            msgspec.convert(endpoints, Endpoints) if endpoints else None,
        )
        with self._means.database.session() as session:  # last: what cannot be written is written later
            update_instance(session, instance_id, **identified(handle.identity))

    def _watch(
        self,
        instance_id: str,
        handle: EngineHandle,
        lease: str,
        state: InstanceState,
        run_dir: str | None,  # of one that was started by another supervisor
        endpoints: Endpoints | None,  # on another host, as far as they are known
    ) -> None:
        now = self._means.clock()
        watched = Watched(handle, lease, state, now, now, now, now)
        watched.ready_s = now if state in (S.READY, S.DRAINING) else None
        self._watched[instance_id] = watched
        if not handle.identity.host:
            endpoints = local_endpoints(run_dir or str(self._means.settings.paths.run), instance_id)
        watched.endpoints = endpoints
        if endpoints is not None:  # else as soon as it is known where it listens
            self._means.wire.follow(instance_id, endpoints)


def _patience_s(host: str) -> float:
    return FAR_PATIENCE_S if host else PATIENCE_S


def _failure(error: Exception) -> str:
    return f"no process could be started: {type(error).__name__}: {error}"


def _find(launcher: Launcher, instance: Instance) -> EngineHandle | None:
    """As the row names it. Raises: Unavailable where that cannot be told."""
    if instance.lease is None:
        return None
    log_file = Path(instance.log_file) if instance.log_file else None
    if instance.pid is not None and instance.process_start_time is not None:
        identity = ProcessIdentity(instance.pid, instance.process_start_time, instance.host or "")
        handle = launcher.adopt(identity, instance.lease, log_file)
        if handle is not None:
            return handle
    return launcher.find(instance.lease, log_file, instance.host or "")


def _end_late(handle: EngineHandle) -> None:
    """Of one whose launcher was given up: another attempt was made meanwhile. Returns when it has ended.

    Elsewhere when its host was told: a fence asks whether it did.
    """
    logger.error("pid=%d was started after its launcher was given up: it is ended", handle.identity.pid)
    handle.kill()
    while handle.exit_code() is None and not handle.identity.host:
        time.sleep(REPEAT_KILL_S)
        handle.kill()
