"""Writes down that an engine has ended, why, and whether it is started again."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sqlalchemy.orm import Session

from trivet.launching import UNSEEN_EXIT
from trivet_registry.fences_store import add_fence
from trivet_registry.instance_state import InstanceState
from trivet_registry.instances_store import LOG_MARK, get_instance, move_instance
from trivet_registry.served import has_served
from trivet_registry.tables import Instance
from trivet_supervisor import engine_logs
from trivet_supervisor.exit_reason import (
    CANNOT_START,
    REBOOTED,
    UNSEEN,
    exit_reason,
    own_words,
    stopped_reason,
)
from trivet_supervisor.fences import Fences
from trivet_supervisor.instance_watch import Watched
from trivet_supervisor.means import Means

logger = logging.getLogger(__name__)

S = InstanceState
MAX_LINE = 300  # characters of a log's line in a reason


@dataclass(frozen=True, slots=True)
class _NewFence:
    """For an engine of which nobody knows that it has ended."""

    why: str
    may_return: bool  # if its host answers before another has taken its place


class Endings:
    """Counts failures in a row; a supervisor that comes anew counts anew.

    A generation that has served is given up only for as long as `Backoff.longest_s`: what it met may pass.
    One that never has is given up for good, after some boots or at once: a person waits for the verdict.
    """

    def __init__(self, means: Means, fences: Fences) -> None:
        self._means = means
        self._fences = fences
        self._failures: dict[str, int] = {}
        self._retry_s: dict[str, float] = {}
        self._counted: set[str] = set()  # those of whose boot failures the last was counted here

    def retry_in_s(self, instance_id: str) -> float:
        """Seconds until its next attempt may begin; 0 or less: now. inf: it needs a person's change."""
        return self._retry_s.get(instance_id, 0.0) - self._means.clock()

    def forget(self, instance_id: str) -> None:
        self._failures.pop(instance_id, None)
        self._retry_s.pop(instance_id, None)
        self._counted.discard(instance_id)

    def ended(self, instance_id: str, watched: Watched, code: int) -> None:
        """A followed process is gone."""
        self._forget_if_stable(instance_id, watched)
        said = own_words(watched.beat) or self._clue(instance_id, watched, code)
        reason, was_boot = exit_reason(code, said), watched.ready_s is None
        self._write(instance_id, reason, code, was_boot, note=watched.memory_note)

    def _clue(self, instance_id: str, watched: Watched, code: int) -> str:
        """To the end of an engine that told nothing: its log's last line, the limits it had."""
        with self._means.database.reading() as session:
            instance = get_instance(session, instance_id)
            log, backend, host = instance.log_file, instance.backend, instance.host
        is_told_by_code = code < 0 or code == UNSEEN_EXIT
        line = engine_logs.tail(Path(log), 1)[:MAX_LINE] if log and code and not is_told_by_code else ""
        clues = [f"{LOG_MARK}{line}" if line else ""]
        if backend and not host:
            own = self._means.settings.for_backend(backend)
            if watched.beat is None and not is_told_by_code and not any(clues):
                clues.append(f"it never answered; its interpreter is {own.python}")
            if own.memory_limit_gib is not None and code != 0:
                clues.append(f"memory_limit_gib of [backend.{backend}] is {own.memory_limit_gib:g}")
        return "; ".join(filter(None, clues))

    def given_up(self, instance_id: str, watched: Watched) -> None:
        """Its host does not answer: a fence stays, until that has said what became of it."""
        self._forget_if_stable(instance_id, watched)
        why, was_boot = watched.handle.unreachable(), watched.ready_s is None
        fence = _NewFence(why, may_return=watched.killed_s is None)
        self._write(instance_id, why, None, was_boot, fence=fence)

    def _forget_if_stable(self, instance_id: str, watched: Watched) -> None:
        stable_s = self._means.backoff.stable_s
        if watched.ready_s is not None and self._means.clock() - watched.ready_s > stable_s:
            self._failures.pop(instance_id, None)

    def unconfirmed(self, instance_id: str, why: str) -> None:
        """Of one that was to end nobody can say whether it has."""
        self._write(instance_id, why, None, was_boot=False, fence=_NewFence(why, may_return=False))

    def ended_unseen(self, instance: Instance) -> None:
        """A process ended while no supervisor was there: nobody's failure, and no crash that is known."""
        # The clock counts from the host's start: what lies ahead of it was before that. What lies behind it
        # may have been, too; then only what is known is said.
        was_rebooted = instance.host is None and (instance.entered_s or 0.0) > self._means.clock()
        self._write(instance.id, REBOOTED if was_rebooted else UNSEEN, None, was_boot=False, was_seen=False)

    def of_other_home(self, instance_id: str, home: Path) -> None:
        """This home never had a process of it."""
        reason = f"its engine is of the home {home}, of which this registry is a copy; it is left alone"
        self._write(instance_id, reason, None, was_boot=False, was_seen=False)

    def not_started(self, instance: Instance, reason: str, needs_change: bool) -> None:
        """No process exists. What cannot be placed at its first launch is told at once.

        Args: needs_change: no time helps, only a person's change of the deployment or of its files.
        """
        self._write(instance.id, reason, None, was_boot=True, is_final=True, needs_change=needs_change)

    def not_spawned(self, instance_id: str, reason: str, host: str = "") -> None:
        """The launcher could not start the process; on another host it may have been started all the same."""
        fence = _NewFence(reason, may_return=True) if host else None
        self._write(instance_id, reason, None, was_boot=True, fence=fence)

    def _write(
        self,
        instance_id: str,
        reason: str,
        code: int | None,
        was_boot: bool,
        is_final: bool = False,  # unless its generation has served
        needs_change: bool = False,
        was_seen: bool = True,
        note: str = "",  # for one that was told to stop
        fence: _NewFence | None = None,  # where nobody knows that it has ended
    ) -> None:
        failures = 0
        with self._means.database.session() as session:
            instance = get_instance(session, instance_id)
            state = instance.instance_state
            lease = instance.lease or ""
            if fence is not None and lease:
                may_return = fence.may_return and state not in (S.DRAINING, S.STOPPING)
                add_fence(session, instance, fence.why, may_return=may_return)
            gone: dict[str, Any] = {
                "pid": None,
                "process_start_time": None,
                "processes": None,
                "exit_code": code,
            }
            if state in (S.DRAINING, S.STOPPING):
                stopped = "; ".join(filter(None, (stopped_reason(code), note)))
                if fence is not None:
                    stopped = f"told to stop; nobody knows whether it has ended: {fence.why}"
                move_instance(session, instance_id, S.STOPPED, stopped, **gone)
                self.forget(instance_id)
            else:
                if state is S.LOST:  # why it was given up says more than how it was killed
                    reason = instance.reason
                is_final = needs_change or ((is_final or code == CANNOT_START) and not has_served(instance))
                gone["needs_change"] = needs_change
                failures = self._write_failure(session, instance, reason, was_boot, is_final, was_seen, gone)
        if fence is None:
            self._discard(instance_id, lease)
        else:
            self._fences.reload()
        if state not in (S.DRAINING, S.STOPPING):  # once it is written: else it is tried again
            self._count(instance_id, failures, needs_change)
        logger.info("instance=%s state=%s ended reason=%s", instance_id, state, reason)

    def _discard(self, instance_id: str, lease: str) -> None:
        """Once it is written down, and outside of the transaction: it may be another host's files."""
        try:
            self._means.launcher.discard(instance_id, lease)
        except Exception:  # a border, as where a stranger's launcher starts one
            logger.exception("instance=%s what it left cannot be discarded", instance_id)

    def _count(self, instance_id: str, failures: int, needs_change: bool) -> None:
        """Args: failures: in a row; 0: it was given up."""
        if failures:
            delay_s = self._means.backoff.delay_s(failures)
            self._failures[instance_id] = failures
        else:
            delay_s = float("inf") if needs_change else self._means.backoff.longest_s
            self._failures.pop(instance_id, None)
        self._counted.add(instance_id)
        self._retry_s[instance_id] = self._means.clock() + delay_s

    def retry(self, instance: Instance) -> bool:
        """Try again what was given up though its generation has served. False: not yet, or not at all."""
        if not has_served(instance) or self.retry_in_s(instance.id) > 0:
            return False
        with self._means.database.session() as session:
            again = f"attempt {instance.attempt + 1}, because: {instance.reason}"
            move_instance(session, instance.id, S.PENDING, again)
        return True

    def _write_failure(
        self,
        session: Session,
        instance: Instance,
        reason: str,
        was_boot: bool,
        is_final: bool,
        was_seen: bool,
        gone: dict[str, Any],
    ) -> int:
        """Returns how many failures in a row it makes; 0: it is given up."""
        backoff, old = self._means.backoff, instance.instance_state
        may_pass = has_served(instance)
        is_counted_anew = may_pass and instance.id not in self._counted
        boots = (0 if is_counted_anew else instance.boot_failures) + was_boot
        first = (None if is_counted_anew else instance.first_failure) or reason
        values = {**gone, "boot_failures": boots}
        if was_seen:
            values["first_failure"] = first
        if instance.log_file and old is not S.PLACING and was_seen:
            engine_logs.pin_first_crash(Path(instance.log_file))
        if is_final or (was_boot and backoff.gives_up(boots, may_pass)):
            if boots > 1:
                reason = f"gave up after {boots} failures in a row; the first: {first}; the last: {reason}"
            if not is_final and may_pass:
                reason = f"{reason}; it has served before and is tried again every {backoff.longest_s:g} s"
            move_instance(session, instance.id, S.FAILED, reason, **values)
            return 0
        # In one transaction: nobody sees a `failed` that is not final.
        move_instance(session, instance.id, S.FAILED, reason, **values)
        failures = self._failures.get(instance.id, 0) + 1
        delay_s = backoff.delay_s(failures)
        again = f"attempt {instance.attempt + 1} in {delay_s:g} s, because: {reason}"
        move_instance(session, instance.id, S.PENDING, again, **values)
        return failures
