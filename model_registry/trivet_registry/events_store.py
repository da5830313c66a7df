"""What happened, for operators: `trivet events`, the console and the audit of a failure."""

from __future__ import annotations

from collections.abc import Sequence

from sqlalchemy import select
from sqlalchemy.orm import Session

from trivet_registry.tables import Event


def record_event(
    session: Session,
    kind: str,
    reason: str = "",
    *,
    deployment: str | None = None,
    instance: str | None = None,
    from_state: str | None = None,
    to_state: str | None = None,
) -> Event:
    """`kind` is "model", "deployment", "instance" or "supervisor"."""
    event = Event(
        kind=kind,
        reason=reason,
        deployment=deployment,
        instance=instance,
        from_state=from_state,
        to_state=to_state,
    )
    session.add(event)
    return event


def list_events(
    session: Session,
    *,
    deployment: str | None = None,
    instance: str | None = None,
    after_id: int = 0,
    limit: int = 100,
) -> Sequence[Event]:
    """The newest `limit` events behind `after_id`, oldest first."""
    query = select(Event).where(Event.id > after_id).order_by(Event.id.desc()).limit(limit)
    if deployment is not None:
        query = query.where(Event.deployment == deployment)
    if instance is not None:
        query = query.where(Event.instance == instance)
    return list(reversed(session.scalars(query).all()))
