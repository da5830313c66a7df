"""/platform/v1/{status,instances,events,devices,nodes}: what is, as the supervisor last saw it."""

from __future__ import annotations

import re

from flask import Blueprint, Response, request

import trivet
from trivet.errors import RequestError
from trivet_registry.devices_store import list_devices
from trivet_registry.events_store import list_events
from trivet_registry.instance_state import LIVE_STATES
from trivet_registry.instances_store import list_instances
from trivet_web.accounts.rights import Right, requires
from trivet_web.api.documented import documented
from trivet_web.api.management.objects import (
    DeviceObject,
    EventObject,
    InstanceObject,
    Listing,
    NodeObject,
    StatusObject,
    SupervisorObject,
    device_object,
    event_object,
    instance_object,
    node_objects,
)
from trivet_web.json_response import json_response
from trivet_web.web_process import web_process

blueprint = Blueprint("observations", __name__, url_prefix="/platform/v1")
MAX_EVENTS = 1000


@blueprint.get("/status")
@requires(Right.READ)
@documented(StatusObject)
def status() -> Response:
    """Whether the supervisor lives, and who may do what."""
    process = web_process()
    supervisor = SupervisorObject(*process.supervisor.state())
    return json_response(StatusObject(trivet.__version__, supervisor, process.settings.auth))


@blueprint.get("/instances")
@requires(Right.READ)
@documented(Listing[InstanceObject], query={"deployment": str, "all": int})
def instances() -> Response:
    """Those that live or failed; with all=1 those that ended, too."""
    process = web_process()
    states = None if request.args.get("all") == "1" else LIVE_STATES
    with process.database.reading() as session:
        rows = list_instances(session, request.args.get("deployment"), states)
        return json_response(Listing([instance_object(row, process.engine_view(row.id)) for row in rows]))


@blueprint.get("/events")
@requires(Right.READ)
@documented(Listing[EventObject], query={"deployment": str, "instance": str, "limit": int})
def events() -> Response:
    """The newest `limit`, oldest first."""
    limit = whole_number("limit", 100, 1, MAX_EVENTS)
    with web_process().database.reading() as session:
        rows = list_events(
            session,
            deployment=request.args.get("deployment"),
            instance=request.args.get("instance"),
            limit=limit,
        )
        return json_response(Listing([event_object(row) for row in rows]))


@blueprint.get("/devices")
@requires(Right.READ)
@documented(Listing[DeviceObject])
def devices() -> Response:
    """Usable or not, with the reason."""
    with web_process().database.reading() as session:
        return json_response(Listing([device_object(row) for row in list_devices(session)]))


@blueprint.get("/nodes")
@requires(Right.READ)
@documented(Listing[NodeObject])
def nodes() -> Response:
    """The hosts of the site, with the devices that they have and the instances that live there."""
    with web_process().database.reading() as session:
        living = list_instances(session, states=LIVE_STATES)
        return json_response(Listing(node_objects(list_devices(session), living)))


def whole_number(name: str, default: int, least: int, most: int) -> int:
    """A number of the query. Raises: RequestError naming it and its range."""
    text = request.args.get(name)
    if text is None:
        return default
    if re.fullmatch("[0-9]{1,18}", text) is None or not least <= int(text) <= most:
        raise RequestError(f"{name} is {text[:40]!r}; it must be a number from {least} to {most}", param=name)
    return int(text)
