"""How much of the past is kept: a site that runs for years must not be slowed down by what it once did."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from sqlalchemy import Select, delete, func, select
from sqlalchemy.orm import Session

from trivet_registry.deployments_store import STOPPED
from trivet_registry.instance_state import LIVE_STATES, InstanceState
from trivet_registry.tables import Deployment, Event, Instance


@dataclass(frozen=True, slots=True)
class Kept:
    """Of each kind the newest so many. By count and not by age, for a host's clock may be wrong by years."""

    events: int = 50_000  # about 10 MB; a deployment that is launched makes eight
    # One that fails once a minute for ever must not push out the history of all others, nor its own.
    events_of_each: int = 5_000
    stopped_instances: int = 50  # of a deployment
    stopped_deployments: int = 500


@dataclass(frozen=True, slots=True)
class Pruned:
    """What is gone."""

    num_rows: int
    deployments: Sequence[str]  # names


def prune(session: Session, kept: Kept | None = None) -> Pruned:
    """Forget the oldest events, and of what has stopped the oldest instances and deployments."""
    kept = kept or Kept()
    num_rows = _prune_events(session, kept) + _prune_instances(session, kept.stopped_instances)
    names = _prune_deployments(session, kept.stopped_deployments)
    return Pruned(num_rows + len(names), names)


def _prune_events(session: Session, kept: Kept) -> int:
    newest = session.scalar(select(func.max(Event.id))) or 0
    place = func.row_number().over(partition_by=Event.deployment, order_by=Event.id.desc())
    ranked = select(Event.id, place.label("place")).where(Event.deployment.is_not(None)).subquery()
    crowded = select(ranked.c.id).where(ranked.c.place > kept.events_of_each)
    return _delete(session, Event, select(Event.id).where(Event.id <= newest - kept.events)) + _delete(
        session, Event, crowded
    )


def _prune_instances(session: Session, num_kept: int) -> int:
    place = func.row_number().over(
        partition_by=Instance.deployment_id, order_by=(Instance.created_at.desc(), Instance.id)
    )
    ranked = (
        select(Instance.id, place.label("place")).where(Instance.state == InstanceState.STOPPED).subquery()
    )
    return _delete(session, Instance, select(ranked.c.id).where(ranked.c.place > num_kept))


def _prune_deployments(session: Session, num_kept: int) -> Sequence[str]:
    """Of those that are no deployment's fallback."""
    living = select(Instance.deployment_id).where(Instance.state.in_(LIVE_STATES - {InstanceState.FAILED}))
    helping = select(Deployment.fallback).where(Deployment.fallback.is_not(None))
    old = session.scalars(
        select(Deployment.name)
        .where(Deployment.desired == STOPPED, Deployment.id.not_in(living))
        .where(Deployment.name.not_in(helping))
        .order_by(Deployment.updated_at.desc(), Deployment.id.desc())
        .offset(num_kept)
    ).all()
    _delete(session, Deployment, select(Deployment.id).where(Deployment.name.in_(old)))
    return old


def _delete(
    session: Session, table: type[Event | Instance | Deployment], ids: Select[int] | Select[str]
) -> int:
    gone = session.execute(
        delete(table).where(table.id.in_(ids)).execution_options(synchronize_session=False)
    )
    return int(gone.rowcount)  # type: ignore[attr-defined]  # of CursorResult
