"""Instances: what the supervisor observes. Every change of state is one transaction with its event."""

from __future__ import annotations

import secrets
from collections.abc import Collection, Sequence
from typing import Any

from sqlalchemy import select, update
from sqlalchemy.orm import Session

from trivet.errors import NotFound
from trivet_registry.events_store import record_event
from trivet_registry.instance_state import IllegalMove, InstanceState, check_move
from trivet_registry.served import EngineRules, remember_served
from trivet_registry.tables import Deployment, Instance, Version, utc_now

LOG_MARK = "its log ends with: "  # in a reason, before what an engine's log says
_ENDED = (InstanceState.STOPPED, InstanceState.FAILED, InstanceState.LOST)


def reason_for_all(reason: str) -> str:
    """Without an engine's log, in which may be what only operators shall read."""
    return reason.partition(LOG_MARK)[0].rstrip(":; ")


def create_instance(
    session: Session,
    deployment: Deployment,
    rules: EngineRules | None = None,
    reason: str | None = None,
) -> Instance:
    """One more instance, `pending`: of the newest generation, or of the one that `rules` are of.

    Raises: NotFound where the version of `rules` was removed.
    """
    session.add(deployment)  # it may have been read in another session
    version = deployment.version if rules is None else session.get(Version, rules.version_id)
    if version is None:
        raise NotFound(f"what deployment {deployment.name!r} served with was removed; update or launch it")
    instance = Instance(
        id=secrets.token_hex(4),
        deployment=deployment,
        version=version,
        generation=deployment.generation if rules is None else rules.generation,
        state=InstanceState.PENDING,
        reason=reason or "waits to be placed",
    )
    session.add(instance)
    session.flush()
    record_event(
        session,
        "instance",
        instance.reason,
        deployment=deployment.name,
        instance=instance.id,
        to_state=InstanceState.PENDING,
    )
    return instance


def get_instance(session: Session, instance_id: str) -> Instance:
    """Raises: NotFound."""
    instance = session.get(Instance, instance_id)
    if instance is None:
        raise NotFound(
            f"instance {instance_id!r} does not exist; trivet ps --all lists all", param="instance"
        )
    return instance


def move_instance(
    session: Session, instance_id: str, to: InstanceState, reason: str = "", **values: Any
) -> Instance:
    """Check and set the state together with other columns (`values`), and record the event.

    Raises: NotFound; IllegalMove naming both states, also where another process moved it meanwhile.
    """
    instance = get_instance(session, instance_id)
    old = instance.instance_state
    check_move(old, to)
    now = utc_now()
    changed: dict[str, Any] = {
        "needs_change": False,
        **values,
        "state": to,
        "reason": reason,
        "state_since": now,
        "as_of": now,
    }
    if to is InstanceState.READY:
        changed["ready_at"] = now
    if to in _ENDED:
        changed["ended_at"] = now
    # The condition makes it safe where sessions do not exclude each other (PostgreSQL).
    statement = update(Instance).where(Instance.id == instance_id, Instance.state == old).values(**changed)
    hit = session.execute(statement.execution_options(synchronize_session=False))
    if hit.rowcount != 1:  # type: ignore[attr-defined]  # of CursorResult, which an UPDATE returns
        raise IllegalMove(f"instance {instance_id} is no longer {old}; it was not moved to {to}")
    session.refresh(instance)
    if to is InstanceState.READY:
        remember_served(instance)
    record_event(
        session,
        "instance",
        reason,
        deployment=instance.deployment.name,
        instance=instance_id,
        from_state=old,
        to_state=to,
    )
    return instance


def update_instance(session: Session, instance_id: str, **values: Any) -> None:
    """Set columns other than the state (load, progress, reason); `as_of` becomes now."""
    if "state" in values:
        raise ValueError("the state is set by move_instance only")
    values.setdefault("as_of", utc_now())
    session.execute(update(Instance).where(Instance.id == instance_id).values(**values))


def list_instances(
    session: Session, deployment: str | None = None, states: Collection[InstanceState] | None = None
) -> Sequence[Instance]:
    """By age, each with its deployment and version."""
    query = select(Instance).join(Instance.deployment).order_by(Instance.created_at, Instance.id)
    if deployment is not None:
        query = query.where(Deployment.name == deployment)
    if states is not None:
        query = query.where(Instance.state.in_(states))
    return session.scalars(query).all()


def ready_instances(session: Session) -> Sequence[Instance]:
    """The routing table: instances that take new requests."""
    return list_instances(session, states=[InstanceState.READY])
