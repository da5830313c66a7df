"""Reads the routing table from the registry."""

from __future__ import annotations

from collections.abc import Callable

from sqlalchemy.exc import DBAPIError
from sqlalchemy.exc import TimeoutError as PoolTimeout

from trivet.errors import Unavailable
from trivet_registry.database import Database
from trivet_registry.deployments_store import RUNNING, list_deployments
from trivet_registry.instance_state import LIVE_STATES
from trivet_registry.instances_store import list_instances
from trivet_registry.tables import Instance
from trivet_web.routing import Deployed, InstanceRow, Table


def table_reader(database: Database) -> Callable[[], Table]:
    """A function that reads every deployment that shall run, with its live instances.

    It raises Unavailable with the reason where the registry cannot be read.
    """

    def read() -> Table:
        try:
            return read_rows()
        except (DBAPIError, PoolTimeout) as error:
            reason = error.orig if isinstance(error, DBAPIError) else error
            raise Unavailable(f"the registry cannot be read: {reason}; try again when it can") from error

    def read_rows() -> Table:
        with database.reading() as session:
            rows = list_instances(session, states=LIVE_STATES)
            return {
                d.name: Deployed(
                    name=d.name,
                    model_path=d.version.path,
                    created_s=int(d.created_at.timestamp()),
                    settings=d.settings,
                    instances=tuple(_row(i) for i in rows if i.deployment_id == d.id),
                )
                for d in list_deployments(session, desired=RUNNING)
            }

    return read


def _row(instance: Instance) -> InstanceRow:
    plan = instance.plan or {}
    return InstanceRow(
        id=instance.id,
        state=instance.state,
        reason=instance.reason,
        max_model_len=plan.get("max_model_len"),
        backend=instance.backend or "",
        device=",".join(instance.device_uids),
    )
