"""POST /platform/v1/plan: what a launch would take, by the same backends on the same devices.

What running instances hold is counted, as the probe sees it; what loading ones are about to take is not.
"""

from __future__ import annotations

from typing import Any

import msgspec
from flask import Blueprint, Response

from trivet.config import parse_engine_settings
from trivet.contract import MemoryPlan
from trivet.engine.assembly import Placement, place
from trivet.errors import BackendError
from trivet.models.model_files import open_model
from trivet_registry.models_store import find_version
from trivet_web.api.management.models import absolute_path
from trivet_web.api.request_body import read_body
from trivet_web.json_response import json_response
from trivet_web.web_process import web_process

blueprint = Blueprint("plan", __name__, url_prefix="/platform/v1")


class PlanRequest(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """As a launch."""

    model: str
    backend: str = "auto"
    device: str | None = None
    settings: dict[str, str] = {}


class PlanObject(msgspec.Struct, frozen=True, kw_only=True):
    """A decision; where it does not fit, the reason names the smallest change that does."""

    backend: str
    device: str | None
    fits: bool
    reason: str | None = None
    parts: list[dict[str, Any]] = []
    num_blocks: list[int] = []
    block_size: int = 0
    max_model_len: int = 0
    max_num_batched_tokens: int = 0


@blueprint.post("/plan")
def plan() -> Response:
    """Raises: ModelNotFound, ModelFilesError, ConfigError. What cannot run is an answer, no error."""
    body = read_body(PlanRequest)
    process = web_process()
    settings = parse_engine_settings(body.settings)
    files = open_model(_path(body.model), process.plugins)
    if body.backend != "auto":
        process.plugins.backend(body.backend)
    devices = (body.device,) if body.device else ()
    try:
        placed = place(process.plugins, files, settings, body.backend, devices)
    except BackendError as error:
        refusal = PlanObject(backend=body.backend, device=body.device, fits=False, reason=error.message)
        return json_response(refusal)
    return json_response(_object(placed, placed.plan))


def _path(reference: str) -> str:
    if "/" in reference or reference.startswith("~"):
        return str(absolute_path(reference, "model"))
    with web_process().database.reading() as session:
        return find_version(session, reference).path


def _object(placed: Placement, plan: MemoryPlan) -> PlanObject:
    return PlanObject(
        backend=placed.backend.name,
        device=", ".join(device.uid for device in placed.devices),
        fits=True,
        parts=[{"name": part.name, "size_bytes": part.size_bytes} for part in plan.parts],
        num_blocks=list(plan.num_blocks),
        block_size=plan.kv.block_size,
        max_model_len=plan.max_model_len,
        max_num_batched_tokens=plan.max_num_batched_tokens,
    )
