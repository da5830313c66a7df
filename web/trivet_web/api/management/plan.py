"""POST /platform/v1/plan: what a launch would take, by the same backends on the same devices.

What live instances have a claim to is counted, also where they are loading and have not taken it yet.
"""

from __future__ import annotations

import msgspec
from flask import Blueprint, Response

from trivet.client.plan_report import plan_report
from trivet.client.results import Plan
from trivet.engine.capacity import Capacity, Claims, Holding
from trivet.engine_settings import parse_engine_settings
from trivet.errors import BackendError
from trivet.models.model_files import open_model
from trivet_registry.instance_state import ALLOCATED_STATES, PROCESS_STATES
from trivet_registry.instances_store import list_instances
from trivet_registry.references import find_version
from trivet_registry.tables import Instance
from trivet_web.accounts.principal import check_right, principal_of_request
from trivet_web.accounts.rights import Right, requires
from trivet_web.api.documented import documented
from trivet_web.api.request_body import read_body
from trivet_web.json_response import json_response
from trivet_web.models.servable import given_path, is_path
from trivet_web.web_process import web_process

blueprint = Blueprint("plan", __name__, url_prefix="/platform/v1")


class PlanRequest(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """As a launch."""

    model: str
    backend: str = "auto"
    device: str | None = None
    settings: dict[str, str] = {}


@blueprint.post("/plan")
@requires(Right.READ)
@documented(Plan, body=PlanRequest)
def plan() -> Response:
    """Raises: ModelNotFound, ModelFilesError, ConfigError. What cannot run is an answer, no error."""
    body = read_body(PlanRequest)
    process = web_process()
    settings = parse_engine_settings(body.settings)
    files = open_model(_path(body.model), process.plugins)
    if body.backend != "auto":
        for name in body.backend.split(","):
            process.plugins.backend(name)
    with process.database.reading() as session:
        claims = Claims([_holding(row) for row in list_instances(session, states=PROCESS_STATES) if row.plan])
    try:
        capacity = Capacity(files, settings, claims)
        answers = capacity.answers(process.plugins, process.prober, body.backend, body.device)
    except BackendError as error:
        return json_response(Plan(backend=body.backend, device=body.device, fits=False, reason=str(error)))
    return json_response(plan_report(body.backend, body.device, answers))


def _path(reference: str) -> str:
    if is_path(reference):  # what a file is like is told to those only who may register it
        check_right(principal_of_request(), Right.OPERATE)
        return str(given_path(reference, "model", web_process().settings))
    with web_process().database.reading() as session:
        return find_version(session, reference).path


def _holding(row: Instance) -> Holding:
    return Holding(
        deployment=row.deployment.name,
        instance=row.id,
        backend=row.backend or "",
        device_uids=tuple(row.device_uids or []),
        size_bytes=(row.plan or {}).get("total_bytes", 0),
        is_taken=row.instance_state in ALLOCATED_STATES,
    )
