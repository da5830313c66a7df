"""The one loop body: makes the instances match the deployments, one small step an instance and turn."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Protocol

from trivet.config import EngineSettings, parse_engine_settings
from trivet.engine import backend_answers
from trivet.engine.assembly import Placement
from trivet.errors import TrivetError
from trivet_registry.deployments_store import RUNNING, list_deployments
from trivet_registry.instance_state import LIVE_STATES, PROCESS_STATES, InstanceState
from trivet_registry.instances_store import (
    create_instance,
    list_instances,
    move_instance,
    update_instance,
)
from trivet_registry.tables import Deployment, Instance, Version
from trivet_supervisor.fleet import Fleet
from trivet_supervisor.ledger import Ledger, ledger_of
from trivet_supervisor.means import Means
from trivet_supervisor.placement import NoRoom

logger = logging.getLogger(__name__)

ROOM_INTERVAL_S = 2.0  # between looks for room

S = InstanceState
_ENDING = (S.DRAINING, S.STOPPING)


class Places(Protocol):
    """`placement.Placer`, or a test's."""

    def place(
        self, version: Version, settings: EngineSettings, backend: str, device: str | None, ledger: Ledger
    ) -> Placement:
        """Raises: NoRoom; TrivetError with the reason."""


class Reconciler:
    """Desired deployments on one side, observed instances on the other."""

    def __init__(self, means: Means, places: Places) -> None:
        self._means = means
        self._places = places
        self.fleet = Fleet(means)
        self._room_s: dict[str, float] = {}  # when to look for room again
        self._shutdown_s: float | None = None  # drain timeout of the shutdown in progress

    def shut_down(self, drain_timeout_s: float) -> None:
        """From now on nothing shall run, whatever the deployments say; they run again with the next serve."""
        self._shutdown_s = drain_timeout_s

    @property
    def is_shutting_down(self) -> bool:
        return self._shutdown_s is not None

    def has_instances(self) -> bool:
        """Whether anything is left that a shutdown waits for."""
        with self._means.database.reading() as session:
            return bool(list_instances(session, states=LIVE_STATES - {S.FAILED}))

    def tick(self) -> bool:
        """One turn. True if something moved, so that another turn may find more to do."""
        self.fleet.hear()
        with self._means.database.reading() as session:
            deployments = list_deployments(session)
            instances = list_instances(session, states=LIVE_STATES)
        moved = self._check_processes(instances)
        for deployment in deployments:
            own = [i for i in instances if i.deployment_id == deployment.id]
            if moved.isdisjoint(i.id for i in own):  # else these rows are old: the next turn sees the new
                moved |= self._match(deployment, own)
        waiting = [i for i in instances if i.id not in moved]
        moved |= self._start_one(waiting, ledger_of(instances))
        self.fleet.save()
        return bool(moved)

    # ---- what is true ----

    def _check_processes(self, instances: Sequence[Instance]) -> set[str]:
        running = [i for i in instances if i.instance_state in PROCESS_STATES]
        return {i.id for i in running if self.fleet.check(i, self._drain_timeout_s(i.deployment))}

    # ---- what is wanted ----

    def _match(self, deployment: Deployment, instances: Sequence[Instance]) -> set[str]:
        """Create what is missing and end what is too much. Returns the instances that moved."""
        is_wanted = deployment.desired == RUNNING and not self.is_shutting_down
        current = [
            i for i in instances if i.generation == deployment.generation and i.instance_state not in _ENDING
        ]
        num_wanted = deployment.replicas if is_wanted else 0
        kept = {i.id for i in sorted(current, key=_worth)[:num_wanted]}
        moved = {
            i.id
            for i in instances
            if i.id not in kept and i.instance_state not in _ENDING and self._end(i, deployment)
        }
        for _ in range(num_wanted - len(current)):
            with self._means.database.session() as session:
                moved.add(create_instance(session, deployment).id)
        return moved

    def _end(self, instance: Instance, deployment: Deployment) -> bool:
        match instance.instance_state:
            case S.LOST:
                return False  # is being killed; it is `pending` when it is gone
            case S.FAILED if self.is_shutting_down and deployment.desired == RUNNING:
                return False  # its reason stays to be seen
            case S.PENDING | S.PLACING | S.FAILED:
                with self._means.database.session() as session:
                    move_instance(session, instance.id, S.STOPPED, "is not wanted any more")
                self.fleet.endings.forget(instance.id)
                self._room_s.pop(instance.id, None)
            case _:
                self.fleet.stop(instance, self._drain_timeout_s(deployment))
        return True

    def _drain_timeout_s(self, deployment: Deployment) -> float:
        if self._shutdown_s is not None:
            return self._shutdown_s
        own = deployment.drain_timeout_s
        return self._means.settings.drain_timeout_s if own is None else own

    # ---- placing ----

    def _start_one(self, instances: Sequence[Instance], ledger: Ledger) -> set[str]:
        """Move one waiting instance on; the next turn sees what it took."""
        for instance in instances:
            if instance.instance_state is S.PENDING and self.fleet.endings.retry_in_s(instance.id) <= 0:
                with self._means.database.session() as session:
                    move_instance(session, instance.id, S.PLACING, "chooses a backend and devices")
                return {instance.id}
            is_placing = instance.instance_state is S.PLACING and self._is_due(instance)
            if is_placing and self._place(instance, ledger):
                return {instance.id}
        return set()

    def _is_due(self, instance: Instance) -> bool:
        return self._means.clock() >= self._room_s.get(instance.id, 0.0)

    def _place(self, instance: Instance, ledger: Ledger) -> bool:
        deployment = instance.deployment
        try:
            settings = parse_engine_settings(deployment.settings)
            placement = self._places.place(
                instance.version, settings, deployment.backend, deployment.device, ledger
            )
            launch_env = backend_answers.launch_env(placement.backend, placement.devices)
        except NoRoom as error:
            self._room_s[instance.id] = self._means.clock() + ROOM_INTERVAL_S
            reason = f"waits for room: {error}"
            if reason != instance.reason:
                with self._means.database.session() as session:
                    update_instance(session, instance.id, reason=reason)
            return False
        except TrivetError as error:
            self.fleet.endings.not_started(instance, str(error))
        except Exception as error:  # a stranger's backend: it must not hold up the other instances
            logger.exception("instance=%s cannot be placed", instance.id)
            reason = f"the backend failed: {type(error).__name__}: {error}"
            self.fleet.endings.not_started(instance, reason)
        else:
            self.fleet.start(instance, placement, launch_env)
        self._room_s.pop(instance.id, None)
        return True


def _worth(instance: Instance) -> tuple[int, float]:
    """Sorts what is kept first: ready ones, then what comes up, the failed last; the oldest first."""
    rank = {S.READY: 0, S.FAILED: 2}.get(instance.instance_state, 1)
    return rank, instance.created_at.timestamp()
