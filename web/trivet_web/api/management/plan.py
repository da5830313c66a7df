"""POST /platform/v1/plan: what a launch would take."""

from __future__ import annotations

from pathlib import Path

import msgspec
from flask import Blueprint, Response

from trivet.client.results import Plan
from trivet_registry.references import find_version
from trivet_web.accounts.principal import check_right, principal_of_request
from trivet_web.accounts.rights import Right, requires
from trivet_web.api.documented import documented
from trivet_web.api.request_body import read_body
from trivet_web.json_response import json_response
from trivet_web.models.adapter_folders import check_adapters, named_adapters
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
    path = _path(body.model)
    if named_adapters(body.settings):
        check_right(principal_of_request(), Right.OPERATE)  # as for a model's path, below
        check_adapters(body.settings, web_process().settings)
    return json_response(web_process().plan(path, body.settings, body.backend, body.device))


def _path(reference: str) -> Path:
    if is_path(reference):  # what a file is like is told to those only who may register it
        check_right(principal_of_request(), Right.OPERATE)
        return given_path(reference, "model", web_process().settings)
    with web_process().database.reading() as session:
        return Path(find_version(session, reference).path)
