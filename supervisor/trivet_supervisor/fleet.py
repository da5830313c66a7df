"""The engine processes of a site: follows them, ends them, and writes down what is true of them.

`check` is called with the registry's row of each instance whose process may exist. A move is written in
the moment in which it is known; loads and progress once a second.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Mapping

import msgspec

from trivet.engine.placement import Placement
from trivet.launching import EngineHandle
from trivet.messages import Drain, Phase, Stop, Watch
from trivet_registry.events_store import record_event
from trivet_registry.instance_state import InstanceState
from trivet_registry.instances_store import move_instance, update_instance
from trivet_registry.tables import Fence, Instance
from trivet_supervisor.arrivals import Arrivals
from trivet_supervisor.endings import Endings
from trivet_supervisor.fences import Fences
from trivet_supervisor.instance_watch import Advance, Ask, GiveUp, Watched, judge
from trivet_supervisor.means import Means
from trivet_supervisor.memory_return import why_memory_is_missing
from trivet_supervisor.outside_stops import OutsideStops
from trivet_supervisor.process_rows import identified, processes_of
from trivet_supervisor.unwritten_end import UnwrittenEnd

logger = logging.getLogger(__name__)

SAVE_INTERVAL_S = 1.0
WATCH_INTERVAL_S = 1.0
REPEAT_DRAIN_S = 2.0
REPEAT_KILL_S = 5.0
SURVIVES = "SIGKILL does not end"
OWN_GAP_S = 2.5  # this process itself was stopped or starved for so long: what it did not hear proves nothing

S = InstanceState


class Fleet:
    """All engines that this supervisor follows."""

    def __init__(self, means: Means) -> None:
        self._means = means
        self.fences = Fences(means)
        self.endings = Endings(means, self.fences)
        self.outside_stops = OutsideStops(means.backoff, means.clock)
        self._watched: dict[str, Watched] = {}
        self._arrivals = Arrivals(means, self.endings, self._watched)
        self._unwritten_end = UnwrittenEnd(means)
        self._losses_s: deque[float] = deque()
        self._heard_s = means.clock()
        self._saved_s = means.clock()
        self._watch_told_s = means.clock()

    @property
    def num_followed(self) -> int:
        return len(self._watched)

    # ---- processes ----

    def start(self, instance: Instance, placement: Placement, launch_env: Mapping[str, str]) -> None:
        """Begin the next attempt of a placed instance."""
        self._arrivals.start(instance, placement, launch_env)

    def await_starts(self, timeout_s: float) -> None:
        """As `Arrivals`."""
        self._arrivals.await_starts(timeout_s)

    def take_back(self, instance: Instance, fence: Fence, handle: EngineHandle) -> None:
        """Follow what had been given up."""
        self._arrivals.take_back(instance, fence, handle)

    def _reach(self, instance: Instance, watched: Watched) -> None:
        """An engine on another host listens where its launcher says, once that knows."""
        endpoints = watched.handle.endpoints() if watched.handle.identity.host else None
        if endpoints is None or endpoints == watched.endpoints:
            return
        with self._means.database.session() as session:
            update_instance(session, instance.id, endpoints=msgspec.structs.asdict(endpoints))
        self._means.wire.follow(instance.id, endpoints)
        watched.endpoints = endpoints

    def _repair(self, instance: Instance, watched: Watched) -> None:
        """After a write that failed half way: the row's state is the one to go on from."""
        with self._means.database.session() as session:
            update_instance(session, instance.id, **identified(watched.handle.identity))
        watched.enter(instance.instance_state, self._means.clock())

    # ---- signs of life ----

    def hear(self) -> bool:
        """Take the beats that have come. True if an engine is in another phase than before."""
        now = self._means.clock()
        if now - self._heard_s > OWN_GAP_S:
            for watched in self._watched.values():
                watched.heard_s, watched.asked_s = now, None
        self._heard_s = now
        is_news = False
        for beat in self._means.wire.beats():
            heard = self._watched.get(beat.instance_id)
            if heard is not None and beat.lease == heard.lease:
                is_news |= heard.beat is None or heard.beat.phase != beat.phase
                heard.hear(beat, now)
        return is_news

    def idle_s(self, instance_id: str) -> float:
        """Seconds without a request, as far as this supervisor has seen; 0 for one that is not followed."""
        watched = self._watched.get(instance_id)
        return 0.0 if watched is None else self._means.clock() - watched.busy_s

    def has_news(self) -> bool:
        """Whether a process is gone or a launcher has answered, unseen by `check`; cheap: for every turn."""
        if self._arrivals.has_news() or self.fences.has_news():
            return True
        return any(watched.handle.exit_code() is not None for watched in self._watched.values())

    def tell_of_watch(self) -> None:
        """Tell the engines that somebody watches, once a second. Called from any thread.

        A registry that somebody else holds locked must not end engines that have an `orphan_timeout_s`.
        """
        now = self._means.clock()
        if now - self._watch_told_s < WATCH_INTERVAL_S:
            return
        self._watch_told_s = now
        for instance_id, watched in list(self._watched.items()):
            self._means.wire.tell(instance_id, Watch(watched.lease))

    def end_unwritten(self, drain_timeout_s: float) -> bool:
        """End every engine though no move can be written down. True when all have ended."""
        is_waiting = self._arrivals.follow_unwritten()
        return self._unwritten_end.press(self._watched, drain_timeout_s) and not is_waiting

    def save(self) -> None:
        """Write loads, progress and `as_of`; once a second."""
        now = self._means.clock()
        if not self._watched or now - self._saved_s < SAVE_INTERVAL_S:
            return
        self._saved_s = now
        with self._means.database.session() as session:
            for instance_id, watched in self._watched.items():
                beat = watched.beat
                if beat is None or watched.saved is beat:
                    continue
                watched.saved = beat
                update_instance(session, instance_id, **watched.told())

    # ---- states ----

    def check(self, instance: Instance, drain_timeout_s: float) -> bool:
        """Bring a row up to what is true of its process. True if it moved."""
        watched = self._watched.get(instance.id)
        if watched is None:
            return self._arrivals.take(instance)
        code = watched.handle.exit_code()
        if code is not None:
            if self._waits_for_memory(instance, watched):
                return False
            self.endings.ended(instance.id, watched, code)
            del self._watched[instance.id]  # last: a registry that cannot be written is tried again
            self._means.wire.forget(instance.id)
            return True
        if instance.pid != watched.handle.identity.pid or instance.state != watched.state:
            self._repair(instance, watched)
        self._reach(instance, watched)
        if watched.handle.unreachable() and (watched.killed_s is not None or watched.state is S.LOST):
            self._give_up(instance, watched)
            return True
        match instance.instance_state:
            case S.DRAINING:
                return self._go_on_draining(instance, watched, drain_timeout_s)
            case S.STOPPING:
                self._press(instance, watched)
                return False
            case S.LOST:
                self._kill(instance, watched)
                return False
        return self._act_on_verdict(instance, watched)

    def _give_up(self, instance: Instance, watched: Watched) -> None:
        """It was told to end, or gave no answer when it was asked; and neither does its host."""
        self.endings.given_up(instance.id, watched)
        del self._watched[instance.id]
        watched.handle.abandon()
        self._means.wire.forget(instance.id)

    def _waits_for_memory(self, instance: Instance, watched: Watched) -> bool:
        reason = why_memory_is_missing(self._means, instance, watched)
        if reason is not None and instance.reason != reason:
            with self._means.database.session() as session:
                update_instance(session, instance.id, reason=reason)
        return reason is not None

    def stop(self, instance: Instance, drain_timeout_s: float, reason: str) -> bool:
        """End an engine: drained first where it serves. False where it is not found yet."""
        watched = self._watched.get(instance.id)
        if watched is None:
            return self._stop_unfollowed(instance, reason)
        if instance.instance_state is S.READY and drain_timeout_s > 0:
            limit = f"drains for at most {drain_timeout_s:g} s"
            self._move(instance, watched, S.DRAINING, f"{reason}: {limit}")
            self._tell_to_drain(instance, watched, drain_timeout_s)
        else:
            self._move(instance, watched, S.STOPPING, f"{reason}: was told to stop")
            self._means.wire.tell(instance.id, Stop(watched.lease))
        return True

    def _stop_unfollowed(self, instance: Instance, reason: str) -> bool:
        """What its launcher finds soon is drained first; else it is ended as soon as it is found."""
        if not self._arrivals.is_doubtful(instance.id) or instance.instance_state is S.STOPPING:
            return False
        with self._means.database.session() as session:
            told = f"{reason}: is to stop, as soon as its launcher says where it is"
            move_instance(session, instance.id, S.STOPPING, told, entered_s=self._means.clock())
        return True

    def _act_on_verdict(self, instance: Instance, watched: Watched) -> bool:
        now = self._means.clock()
        match judge(watched, now, self._means.limits):
            case Advance(to=to, reason=reason):
                if to is S.STOPPING:
                    self.outside_stops.count(instance.deployment, watched.ready_s)
                self._move(instance, watched, to, reason)
                return True
            case Ask():
                logger.warning("instance=%s silent_s=%.1f is asked", instance.id, now - watched.heard_s)
                watched.asked_s = now
                self._means.wire.tell(instance.id, Watch(watched.lease))
            case GiveUp(reason=reason, for_silence=for_silence):
                why_far = watched.handle.unreachable()
                reason = "; ".join(filter(None, (reason, why_far)))
                if for_silence and self._is_kept(instance, watched, reason, now):
                    return False
                self._move(instance, watched, S.LOST, reason)
                if why_far:
                    self._give_up(instance, watched)  # not killed: it may serve again before another does
                else:
                    self._kill(instance, watched)
                return True
            case None if watched.is_kept and watched.asked_s is None:
                watched.is_kept = False
                self._tell(instance, "answers again after its silence, and serves")
        return False

    def _is_kept(self, instance: Instance, watched: Watched, reason: str, now: float) -> bool:
        """Many that are silent at once say that the host is busy, or that what they share hangs."""
        why = watched.handle.cut_off()
        if not why and (watched.handle.unreachable() or self._may_lose(now)):
            return False
        watched.asked_s = now  # not given up again in the next turn
        if not watched.is_kept:
            watched.is_kept = True
            most = self._means.limits.max_losses_per_minute
            logger.error("instance=%s kept though silent: many are at once", instance.id)
            why = why or f"{most} others were given up within this minute"
            self._tell(instance, f"{reason}; kept for now: {why}")
        return True

    def _tell(self, instance: Instance, reason: str) -> None:
        """What is new of an instance that stays in its state."""
        with self._means.database.session() as session:
            update_instance(session, instance.id, reason=reason)
            record_event(
                session, "instance", reason, deployment=instance.deployment.name, instance=instance.id
            )

    def _may_lose(self, now: float) -> bool:
        while self._losses_s and now - self._losses_s[0] > 60.0:
            self._losses_s.popleft()
        if len(self._losses_s) >= self._means.limits.max_losses_per_minute:
            return False
        self._losses_s.append(now)
        return True

    def _go_on_draining(self, instance: Instance, watched: Watched, timeout_s: float) -> bool:
        now = self._means.clock()
        if now - watched.entered_s > timeout_s + self._means.limits.drain_grace_s:
            self._move(instance, watched, S.STOPPING, f"requests were left after {timeout_s:g} s of draining")
            self._means.wire.tell(instance.id, Stop(watched.lease))
            return True
        was_missed = watched.beat is not None and watched.beat.phase is Phase.READY
        if timeout_s != watched.drain_timeout_s or (was_missed and now - watched.told_s > REPEAT_DRAIN_S):
            self._tell_to_drain(instance, watched, timeout_s)
        return False

    def _tell_to_drain(self, instance: Instance, watched: Watched, timeout_s: float) -> None:
        now = self._means.clock()
        watched.drain_timeout_s, watched.told_s = timeout_s, now
        left_s = max(0.0, watched.entered_s + timeout_s - now)
        self._means.wire.tell(instance.id, Drain(watched.lease, left_s))

    def _press(self, instance: Instance, watched: Watched) -> None:
        """A stop that is not obeyed becomes SIGTERM, then SIGKILL."""
        now, limits = self._means.clock(), self._means.limits
        if watched.terminated_s is None:
            if now - watched.entered_s > limits.stop_s:
                watched.terminated_s = now
                watched.handle.terminate()
        elif now - watched.terminated_s > limits.terminate_s:
            self._kill(instance, watched)

    def _kill(self, instance: Instance, watched: Watched) -> None:
        now = self._means.clock()
        if watched.killed_s is None or now - watched.killed_s > REPEAT_KILL_S:
            if watched.killed_s is not None:
                self._tell_survival(instance, watched.handle)
            watched.killed_s = now
            watched.handle.kill()

    def _tell_survival(self, instance: Instance, handle: EngineHandle) -> None:
        """It stays what it is: to call it stopped would be a lie, and nothing ends it but its driver."""
        pids = ", ".join(str(each.pid) for each in handle.processes() or [handle.identity])
        logger.error("instance=%s pids=%s survive SIGKILL", instance.id, pids)
        if SURVIVES not in instance.reason:
            reason = f"{instance.reason}; {SURVIVES} pid {pids}, a device may hang: see dmesg"
            with self._means.database.session() as session:
                update_instance(session, instance.id, reason=reason)

    def _move(self, instance: Instance, watched: Watched, to: InstanceState, reason: str) -> None:
        values = watched.told()  # with the state, so that who waits for it sees what it warns of, too
        if to is S.READY:  # every rank is up
            values |= {"boot_failures": 0, "first_failure": None, "processes": processes_of(watched.handle)}
        now = self._means.clock()
        with self._means.database.session() as session:
            move_instance(session, instance.id, to, reason, entered_s=now, **values)
        watched.enter(to, now)
        logger.info("instance=%s state=%s reason=%s", instance.id, to, reason)
