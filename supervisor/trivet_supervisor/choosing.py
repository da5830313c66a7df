"""Where a waiting instance goes, seen from its deployment: what it served on, what its older ones hold.

By itself a placement takes the first backend that can. That would move a model from a GPU to the CPU for
good because a driver came up late, or because an update found no room beside the instance that it replaces.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Protocol

from trivet.engine import backend_answers
from trivet.engine.ledger import Ledger
from trivet.engine.placement import Placement
from trivet.engine_settings import EngineSettings, parse_engine_settings
from trivet.errors import DoesNotFit, TrivetError, Unavailable
from trivet_registry.claims import ledger_of
from trivet_registry.instance_state import PROCESS_STATES
from trivet_registry.served import has_served, rules_of, served_on
from trivet_registry.tables import Instance, Version
from trivet_supervisor.placement import NoRoom
from trivet_supervisor.placing import Chosen

logger = logging.getLogger(__name__)

HOME_ATTEMPTS = 7  # about a minute: `Backoff` doubles from half a second


class Places(Protocol):
    """`placement.Placer`, or a test's."""

    def place(
        self, version: Version, settings: EngineSettings, backend: str, device: str | None, ledger: Ledger
    ) -> Placement:
        """Raises: NoRoom; TrivetError with the reason."""


def choose(places: Places, instance: Instance, living: Sequence[Instance]) -> Chosen:
    """A placement, and what its backend wants in the environment.

    Raises: NoRoom, completed by whether the older instances of its deployment are what is in the way;
    Unavailable while what it served on is waited for; what `place` raises.
    """
    siblings = [i for i in living if i.deployment_id == instance.deployment_id and i.id != instance.id]
    older = older_than(instance.generation, siblings)
    try:
        placement, launch_env = _chosen(places, instance, ledger_of(living))
    except DoesNotFit as error:
        if not isinstance(error, NoRoom) and not has_served(instance):
            raise
        # What has served would fit again if strangers on its devices were gone.
        waits = error if isinstance(error, NoRoom) else NoRoom(str(error))
        waits.older = older
        waits.fits_without_older = _backend_without(older, places, instance, living) is not None
        raise waits from error.__cause__
    home = served_on(instance)
    passing = placement.passed_over.get(home or "")
    if older and isinstance(passing, NoRoom):
        waits = NoRoom(str(passing))
        waits.older = older
        waits.fits_without_older = _backend_without(older, places, instance, living) == home
        raise waits
    if passing is not None and _waits_for(home, passing, instance, siblings):
        raise Unavailable(_described(home, passing, instance, placement))
    return placement, launch_env


def older_than(generation: int, instances: Sequence[Instance]) -> frozenset[str]:
    """Ids of those of earlier generations."""
    return frozenset(i.id for i in instances if i.generation < generation)


def _chosen(places: Places, instance: Instance, ledger: Ledger) -> Chosen:
    rules = rules_of(instance)
    settings = parse_engine_settings(rules.settings)
    placement = places.place(instance.version, settings, rules.backend, rules.device, ledger)
    if placement.devices[0].host:  # the agent there asks its own backend
        return placement, {}
    return placement, backend_answers.launch_env(placement.backend, placement.devices)


def _waits_for(
    home: str | None, error: TrivetError, instance: Instance, siblings: Sequence[Instance]
) -> bool:
    """Whether it is to be tried again before it goes elsewhere: what keeps it from its backend may pass."""
    if not has_served(instance) or instance.boot_failures >= HOME_ATTEMPTS:
        return False
    # One more replica of what serves there may go where there is room.
    is_one_more = instance.ready_at is None and any(
        i.backend == home and i.instance_state in PROCESS_STATES for i in siblings
    )
    return not (is_one_more and isinstance(error, DoesNotFit))


def _described(home: str | None, error: TrivetError, instance: Instance, placement: Placement) -> str:
    left = HOME_ATTEMPTS - instance.boot_failures
    return (
        f"it served on {home}, which cannot take it now: {error}; it goes to {placement.backend.name} "
        f"after {left} more attempt{'s' * (left != 1)}"
    )


def _backend_without(
    gone: frozenset[str], places: Places, instance: Instance, living: Sequence[Instance]
) -> str | None:
    """Where it would go if they were gone; None: nowhere, or there are none.

    Else an update would end what serves and come up none the sooner: others hold the devices.
    """
    if not gone:
        return None
    try:
        placement, _ = _chosen(places, instance, ledger_of(living, gone))
    except TrivetError:
        return None
    except Exception:  # a stranger's backend, as in `Reconciler._place`
        logger.exception("instance=%s cannot be planned without the older ones", instance.id)
        return None
    return placement.backend.name
