"""How much of the past is kept: a site that runs for years must not be slowed down by what it once did."""

from __future__ import annotations

from sqlalchemy import delete, func, select
from sqlalchemy.orm import Session

from trivet_registry.instance_state import InstanceState
from trivet_registry.tables import Event, Instance

KEPT_EVENTS = 50_000  # about 10 MB; a deployment that is launched makes eight
KEPT_STOPPED = 50  # instances of a deployment that have come to their end


def prune(session: Session, kept_events: int = KEPT_EVENTS, kept_stopped: int = KEPT_STOPPED) -> int:
    """Forget the oldest events and stopped instances. Returns how many rows are gone.

    By count and not by age, for the clock of a host may be wrong by years.
    """
    newest = session.scalar(select(func.max(Event.id))) or 0
    events = session.execute(delete(Event).where(Event.id <= newest - kept_events))
    place = func.row_number().over(
        partition_by=Instance.deployment_id, order_by=(Instance.created_at.desc(), Instance.id)
    )
    ranked = (
        select(Instance.id, place.label("place")).where(Instance.state == InstanceState.STOPPED).subquery()
    )
    old = select(ranked.c.id).where(ranked.c.place > kept_stopped)
    instances = session.execute(
        delete(Instance).where(Instance.id.in_(old)).execution_options(synchronize_session=False)
    )
    return int(events.rowcount + instances.rowcount)  # type: ignore[attr-defined]  # of CursorResult
