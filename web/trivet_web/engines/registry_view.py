"""Reads the routing table from the registry."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Sequence

import msgspec
from sqlalchemy.exc import DBAPIError
from sqlalchemy.exc import TimeoutError as PoolTimeout

from trivet.endpoints import Endpoints
from trivet.errors import Unavailable
from trivet_registry.database import Database
from trivet_registry.deployments_store import RUNNING, list_deployments
from trivet_registry.instance_state import LIVE_STATES, InstanceState
from trivet_registry.instances_store import list_instances
from trivet_registry.served import is_given_up
from trivet_registry.tables import Deployment, Instance, Version, utc_now
from trivet_web.engines.routing import Deployed, InstanceRow, ModelFacts, Table

logger = logging.getLogger(__name__)

HALF_WRITTEN = (AttributeError, TypeError, ValueError)  # a column that has another type than its own


def table_reader(database: Database) -> Callable[[], Table]:
    """A function that reads every deployment that shall run, with its live instances.

    A row that is half written is left out with a warning. It raises Unavailable with the reason where the
    registry cannot be read.
    """
    warned: set[str] = set()  # once a row, for the table is read twice a second

    def read() -> Table:
        try:
            return read_rows()
        except (DBAPIError, PoolTimeout) as error:
            reason = error.orig if isinstance(error, DBAPIError) else error
            raise Unavailable(f"the registry cannot be read: {reason}; try again when it can") from error

    def read_rows() -> Table:
        with database.reading() as session:
            rows = list_instances(session, states=LIVE_STATES)
            living = {i.deployment_id for i in rows}  # of a stopped one: it drains, which a request is told
            table: dict[str, Deployed] = {}
            for d in list_deployments(session):
                if d.desired != RUNNING and d.id not in living:
                    continue
                try:
                    table[d.name] = _deployed(d, [i for i in rows if i.deployment_id == d.id])
                except HALF_WRITTEN as error:
                    if d.name not in warned:
                        warned.add(d.name)
                        logger.warning("deployment=%s left out, its rows cannot be read: %r", d.name, error)
            return table

    return read


def _deployed(deployment: Deployment, instances: Sequence[Instance]) -> Deployed:
    """Requests go to the instances of one version: another may have another tokenizer.

    While an update to a version is under way it is the one of which more are ready, the newer of two alike.
    """
    ready = Counter(i.version_id for i in instances if i.instance_state is InstanceState.READY)
    serving = max(ready, key=lambda version: (ready[version], version == deployment.version_id), default=None)
    versions = {i.version_id: i.version for i in instances}
    version = deployment.version if serving is None else versions[serving]
    return Deployed(
        name=deployment.name,
        model_path=version.path,
        created_s=int(deployment.created_at.timestamp()),
        replicas=deployment.replicas,
        settings=dict(deployment.settings),
        is_asleep=deployment.is_asleep,
        is_leaving=deployment.desired != RUNNING,
        fallback=deployment.fallback,
        facts=_facts(version, deployment.alias),
        instances=tuple(_row(i, is_of_served_version=i.version_id == version.id) for i in instances),
    )


def _facts(version: Version, alias: str | None) -> ModelFacts:
    return ModelFacts(
        name=version.name,
        version=version.version,
        format=version.format,
        quantization=version.quantization or "",
        architecture=version.architecture,
        size_bytes=version.size_bytes,
        context_length=version.context_length,
        fingerprint=version.fingerprint,
        created_s=int(version.created_at.timestamp()),
        alias=alias,
    )


def _row(instance: Instance, *, is_of_served_version: bool) -> InstanceRow:
    plan = instance.plan or {}
    return InstanceRow(
        id=instance.id,
        state=instance.state,
        reason=instance.reason,
        is_given_up=is_given_up(instance),
        max_model_len=plan.get("max_model_len"),
        backend=instance.backend or "",
        device=",".join(instance.device_uids or []),
        is_of_served_version=is_of_served_version,
        in_state_s=(utc_now() - instance.state_since).total_seconds(),
        loaded=instance.progress_done / instance.progress_total if instance.progress_total else 0.0,
        endpoints=None if not instance.endpoints else msgspec.convert(instance.endpoints, Endpoints),
    )
