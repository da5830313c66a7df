"""The ledger of the devices, read from the instances: nothing is stored, so it cannot disagree with them."""

from __future__ import annotations

from collections.abc import Collection, Iterable

from trivet.engine.ledger import Holding, Ledger
from trivet_registry.instance_state import ALLOCATED_STATES, PROCESS_STATES
from trivet_registry.tables import Instance


def ledger_of(instances: Iterable[Instance], gone: Collection[str] = ()) -> Ledger:
    """The plans of instances whose process may exist.

    Each device of an instance carries the sum of its plan (a plan is of one rank).

    Args: gone: ids of instances that are thought to have ended.
    """
    holdings = [
        (instance.id, _holding(instance))
        for instance in instances
        if instance.instance_state in PROCESS_STATES and instance.plan and instance.backend
    ]
    return Ledger(
        tuple(holding for key, holding in holdings if key not in gone),
        tuple(holding for key, holding in holdings if key in gone),
    )


def _holding(row: Instance) -> Holding:
    plan = row.plan or {}
    return Holding(
        deployment=row.deployment.name,
        instance=row.id,
        backend=row.backend or "",
        device_uids=tuple(row.device_uids or ()),
        size_bytes=plan.get("total_bytes", 0),
        is_taken=row.instance_state in ALLOCATED_STATES,
        host_bytes=plan.get("host_bytes", 0),
        host=row.host or "",
    )
