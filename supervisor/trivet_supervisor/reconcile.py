"""The one loop body: makes the instances match the deployments, one small step an instance and turn."""

from __future__ import annotations

import logging
from collections.abc import Sequence

from trivet.errors import ConfigError, TrivetError
from trivet.launching import EngineHandle
from trivet_registry.claims import ledger_of
from trivet_registry.deployment_changes import sleep_deployment
from trivet_registry.deployments_store import RUNNING, list_deployments
from trivet_registry.instance_state import LIVE_STATES, PROCESS_STATES, InstanceState
from trivet_registry.instances_store import (
    create_instance,
    list_instances,
    move_instance,
    update_instance,
)
from trivet_registry.served import served_rules
from trivet_registry.tables import Deployment, Fence, Instance
from trivet_supervisor.choosing import Places, choose, older_than
from trivet_supervisor.faults import Faults
from trivet_supervisor.fleet import Fleet
from trivet_supervisor.idleness import why_idle
from trivet_supervisor.means import Means
from trivet_supervisor.placement import FilesChanged, NoRoom
from trivet_supervisor.placing import Placing, StillPlacing
from trivet_supervisor.rollout import changes_of

logger = logging.getLogger(__name__)

ROOM_INTERVAL_S = 2.0  # between looks for room
SHUTS_DOWN = "the server is being stopped"
UNLOADED = "is unloaded, for nobody uses it"
PLACING = "chooses a backend and devices"
HELD = "waits for its host to say what became of the engine that was given up there"

S = InstanceState


class Reconciler:
    """Desired deployments on one side, observed instances on the other."""

    def __init__(self, means: Means, places: Places) -> None:
        self._means = means
        self._places = places
        self.fleet = Fleet(means)
        self._faults = Faults(means)
        self.placing = Placing(means.clock, means.limits.placing_s)
        self._room_s: dict[str, float] = {}  # when to look for room again
        # Of those, whether they would have it if these older ones were gone; valid as long as these are all.
        self._looks: dict[str, tuple[frozenset[str], bool]] = {}
        self._shutdown_s: float | None = None  # drain timeout of the shutdown in progress
        self.has_ended_unwritten = False  # every engine, though no row says so

    def shut_down(self, drain_timeout_s: float) -> None:
        """From now on nothing shall run, whatever the deployments say; they run again with the next serve."""
        self._shutdown_s = drain_timeout_s

    @property
    def is_shutting_down(self) -> bool:
        return self._shutdown_s is not None

    def waits_for_engines(self) -> bool:
        """Whether anything is left that a shutdown waits for; not hosts that are silent."""
        with self._means.database.reading() as session:
            is_left = bool(list_instances(session, states=LIVE_STATES - {S.FAILED}))
        return is_left or not self.fleet.fences.are_settled(self._means.limits.kill_s)

    def end_unwritten(self) -> None:
        """Go on with a shutdown though the registry cannot be written."""
        if self._shutdown_s is not None:
            self.has_ended_unwritten = self.fleet.end_unwritten(self._shutdown_s)

    def tick(self) -> bool:
        """One turn. True if something moved, so that another turn may find more to do.

        Raises: SupervisionLost where another supervisor manages the registry by now.
        """
        self.fleet.hear()
        self.fleet.tell_of_watch()
        self._means.check_claim()
        with self._means.database.reading() as session:
            deployments = list_deployments(session)
            instances = list_instances(session, states=LIVE_STATES)
        moved = self._check_processes(instances)
        moved |= self._turn_fences(instances, moved)
        wanted: list[Instance] = []
        for deployment in deployments:
            own = [i for i in instances if i.deployment_id == deployment.id]
            if moved.isdisjoint(i.id for i in own):  # else these rows are old: the next turn sees the new
                if not self._faults.holds_back(deployment.name):
                    with self._faults.border(deployment.name, deployment.name):
                        moved |= self._match(deployment, own)
                wanted += [i for i in own if i.id not in moved]
        moved |= self._start_one(wanted, instances)
        self.fleet.save()
        return bool(moved)

    # ---- what is true ----

    def _check_processes(self, instances: Sequence[Instance]) -> set[str]:
        moved = set()
        for instance in instances:
            if instance.instance_state not in PROCESS_STATES or self._faults.holds_back(instance.id):
                continue
            with self._faults.border(instance.id, instance.deployment.name):
                if self.fleet.check(instance, self._drain_timeout_s(instance)):
                    moved.add(instance.id)
        return moved

    def _turn_fences(self, instances: Sequence[Instance], moved: set[str]) -> set[str]:
        """What was given up is taken back or ended, where its host answers."""

        def take_back(instance: Instance, fence: Fence, handle: EngineHandle) -> None:
            self.fleet.take_back(instance, fence, handle)
            self._forget_wait(instance)

        return self.fleet.fences.turn(instances, moved, self.is_shutting_down, take_back)

    # ---- what is wanted ----

    def _match(self, deployment: Deployment, instances: Sequence[Instance]) -> set[str]:
        """Create what is missing and end what is too much. Returns the instances that moved."""
        is_wanted = deployment.desired == RUNNING and not self.is_shutting_down
        reason = why_idle(deployment, instances, self.fleet.idle_s) if is_wanted else None
        if reason is not None:
            with self._means.database.session() as session:
                sleep_deployment(session, deployment.name, reason)
            return {i.id for i in instances}  # the next turn ends them
        served = served_rules(deployment)
        older = older_than(deployment.generation, instances)
        looks = {key: is_helped for key, (seen, is_helped) in self._looks.items() if seen == older}
        changes = changes_of(
            instances,
            generation=deployment.generation,
            first_generation=deployment.first_generation,
            served_generation=None if served is None else served.generation,
            num_wanted=deployment.replicas if is_wanted and not deployment.is_asleep else 0,
            helped_by_room=[key for key, is_helped in looks.items() if is_helped],
            finds_no_room=[key for key, is_helped in looks.items() if not is_helped],
        )
        moved = {
            i.id
            for i, reason in changes.ended
            if self._end(i, deployment, self._why_ended(deployment, reason))
        }
        if is_wanted:
            ended = {i.id for i, _ in changes.ended}
            failed = [i for i in instances if i.instance_state is S.FAILED and i.id not in ended]
            moved |= {i.id for i in failed if self.fleet.endings.retry(i)}
        for rules in [served] * changes.num_served + [None] * changes.num_new:
            with self._means.database.session() as session:
                why_wait = self.fleet.outside_stops.why_wait(deployment)
                moved.add(create_instance(session, deployment, rules, why_wait).id)
        return moved

    def _why_ended(self, deployment: Deployment, reason: str) -> str:
        if self.is_shutting_down:
            return SHUTS_DOWN
        return UNLOADED if deployment.is_asleep and deployment.desired == RUNNING else reason

    def _end(self, instance: Instance, deployment: Deployment, reason: str) -> bool:
        match instance.instance_state:
            case S.LOST:
                return False  # is being killed; it is `pending` when it is gone
            case S.FAILED if self.is_shutting_down and deployment.desired == RUNNING:
                return False  # its reason stays to be seen
            case S.PENDING | S.PLACING | S.FAILED:
                with self._means.database.session() as session:
                    move_instance(session, instance.id, S.STOPPED, reason)
                self.fleet.endings.forget(instance.id)
                self._forget_wait(instance)
            case _:
                return self.fleet.stop(instance, self._drain_timeout_s(instance), reason)
        return True

    def _drain_timeout_s(self, instance: Instance) -> float:
        if self._shutdown_s is not None:
            return self._shutdown_s
        deployment = instance.deployment
        own = None
        if instance.generation < deployment.first_generation:  # of an earlier launch: as that was stopped
            own = instance.drain_timeout_s
        elif deployment.desired != RUNNING:
            own = deployment.drain_timeout_s
        return self._means.settings.drain_timeout_s if own is None else own

    # ---- placing ----

    def _start_one(self, wanted: Sequence[Instance], living: Sequence[Instance]) -> set[str]:
        """Move one waiting instance on; the next turn sees what it took."""
        for instance in sorted(wanted, key=_urgency):
            if self._faults.holds_back(instance.id) or self.placing.is_under_way(instance.id):
                continue
            with self._faults.border(instance.id, instance.deployment.name):
                if self._move_on(instance, living):
                    return {instance.id}
        return set()

    def _move_on(self, instance: Instance, living: Sequence[Instance]) -> bool:
        if instance.instance_state is S.PLACING:
            self._place(instance, living)
            return True
        if instance.instance_state is not S.PENDING or not self._is_due(instance):
            return False
        if instance.id in self._room_s:
            return self._place(instance, living)
        with self._means.database.session() as session:
            move_instance(session, instance.id, S.PLACING, PLACING)
        return True

    def _is_due(self, instance: Instance) -> bool:
        has_room_due = self._means.clock() >= self._room_s.get(instance.id, 0.0)
        if self.fleet.outside_stops.wait_s(instance.deployment):
            return False
        return has_room_due and self.fleet.endings.retry_in_s(instance.id) <= 0

    def _place(self, instance: Instance, living: Sequence[Instance]) -> bool:
        """False where it goes on waiting for room."""
        needs_change = False
        try:
            placement, launch_env = self.placing.take(
                instance.id, ledger_of(living), lambda: choose(self._places, instance, living)
            )
        except StillPlacing:
            return False
        except NoRoom as error:
            self._wait_for_room(instance, f"waits for room: {error}")
            self._looks[instance.id] = error.older, error.fits_without_older
            return False
        except TrivetError as error:
            failure, needs_change = str(error), isinstance(error, ConfigError | FilesChanged)
        except Exception as error:  # a stranger's backend: it must not hold up the other instances
            logger.exception("instance=%s cannot be placed", instance.id)
            failure = f"the backend failed: {type(error).__name__}: {error}"
        else:
            failure = ""
        if not failure and self.fleet.fences.holds(instance.id, placement.devices[0].host):
            self._wait_for_room(instance, HELD)  # it answers: what lives there goes on instead
            return True
        if instance.instance_state is S.PENDING:  # it had waited for room
            with self._means.database.session() as session:
                move_instance(session, instance.id, S.PLACING, PLACING)
        if failure:
            self.fleet.endings.not_started(instance, failure, needs_change)
        else:
            self.fleet.start(instance, placement, launch_env)
        self._forget_wait(instance)
        return True

    def _forget_wait(self, instance: Instance) -> None:
        self.placing.forget(instance.id)
        self._room_s.pop(instance.id, None)
        self._looks.pop(instance.id, None)

    def _wait_for_room(self, instance: Instance, reason: str) -> None:
        """In `pending`, without a move a look: `placing` lasts for a turn."""
        self._room_s[instance.id] = self._means.clock() + ROOM_INTERVAL_S
        with self._means.database.session() as session:
            if instance.instance_state is S.PLACING:
                move_instance(session, instance.id, S.PENDING, reason)
            elif reason != instance.reason:
                update_instance(session, instance.id, reason=reason)


def _urgency(instance: Instance) -> tuple[int, float]:
    return instance.deployment.priority, instance.created_at.timestamp()
