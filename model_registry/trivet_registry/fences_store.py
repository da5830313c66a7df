"""Engines that were given up though nobody knows that they have ended.

A fence is made in the transaction that gives its engine up, and removed when the engine's host has said that
it is gone, or when it is taken back. Whoever supervises the site asks for as long as it is there.
"""

from __future__ import annotations

from collections.abc import Sequence

from sqlalchemy import delete, select
from sqlalchemy.orm import Session

from trivet_registry.tables import Fence, Instance

# Of the instance's row: what it takes to follow this engine again.
_ENGINE = (
    "lease",
    "host",
    "pid",
    "process_start_time",
    "processes",
    "backend",
    "device_uids",
    "plan",
    "run_dir",
    "endpoints",
    "log_file",
)


def add_fence(session: Session, instance: Instance, why: str, *, may_return: bool) -> None:
    """For the engine of the instance's row as it is now.

    Args: may_return: whether it is taken back if its host answers before another has taken its place.
    """
    session.merge(
        Fence(
            lease=instance.lease,
            host=instance.host or "",
            instance_id=instance.id,
            deployment=instance.deployment.name,
            pid=instance.pid,
            why=why,
            engine={name: getattr(instance, name) for name in _ENGINE} if may_return else None,
        )
    )


def list_fences(session: Session) -> Sequence[Fence]:
    """The oldest first."""
    return session.scalars(select(Fence).order_by(Fence.since, Fence.lease)).all()


def remove_fence(session: Session, lease: str) -> None:
    """Idempotent."""
    session.execute(delete(Fence).where(Fence.lease == lease))
