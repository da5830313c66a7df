"""What tabs can listen to: the site, deployments, instances, devices, events, and figures each second."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import msgspec
from sqlalchemy.orm import Session

import trivet
from trivet_registry.deployments_store import list_deployments
from trivet_registry.devices_store import list_devices
from trivet_registry.events_store import list_events
from trivet_registry.instance_state import LIVE_STATES
from trivet_registry.instances_store import list_instances
from trivet_web.api.management.objects import (
    StatusObject,
    SupervisorObject,
    deployment_object,
    device_object,
    event_object,
    instance_object,
)
from trivet_web.console.event_feed import Objects, Topic
from trivet_web.web_process import WebProcess

NUM_EVENTS = 50
_encode = msgspec.json.Encoder().encode


class Figure(msgspec.Struct, frozen=True):
    """One of `/platform/v1/history`, now; `at` is seconds since the epoch."""

    name: str
    labels: dict[str, str]
    value: float


class Figures(msgspec.Struct, frozen=True):
    """All of one second."""

    at: float
    figures: list[Figure]


def topics_of(process: WebProcess) -> Iterable[Topic]:
    """Each reads what its route in /platform/v1 answers."""

    def site() -> Objects:
        supervisor = SupervisorObject(*process.supervisor.state())
        status = StatusObject(trivet.__version__, supervisor, process.settings.auth)
        return {"site": _encode(status)}

    def deployments(session: Session) -> Objects:
        return {row.name: _encode(deployment_object(row, [])) for row in list_deployments(session)}

    def instances(session: Session) -> Objects:
        rows = list_instances(session, states=LIVE_STATES)
        return {row.id: _encode(instance_object(row, process.engine_view(row.id))) for row in rows}

    def devices(session: Session) -> Objects:
        return {f"{row.kind}:{row.uid}": _encode(device_object(row)) for row in list_devices(session)}

    def events(session: Session) -> Objects:
        return {str(row.id): _encode(event_object(row)) for row in list_events(session, limit=NUM_EVENTS)}

    def figures() -> Objects:
        _, times, series = process.history.read(1)
        if not times:
            return {}
        found = [
            Figure(one.name, dict(zip(one.labels[::2], one.labels[1::2], strict=True)), float(one.values[-1]))
            for one in series
        ]
        return {"now": _encode(Figures(times[-1], found))}

    yield Topic("site", site)
    for name, read in (
        ("deployments", deployments),
        ("instances", instances),
        ("devices", devices),
        ("events", events),
    ):
        yield Topic(name, _reader(process, read))
    yield Topic("metrics", figures, is_stream=True)


def _reader(process: WebProcess, read: Callable[[Session], Objects]) -> Callable[[], Objects]:
    def look() -> Objects:
        with process.database.reading() as session:
            return read(session)

    return look
