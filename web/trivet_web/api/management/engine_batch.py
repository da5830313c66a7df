"""GET /platform/v1/instances/INSTANCE/batch: what an engine holds now, asked of the engine itself."""

from __future__ import annotations

import secrets

import msgspec
from flask import Blueprint, Response

from trivet.engine.batch_view import BatchView
from trivet.messages import Look
from trivet_registry.instance_state import InstanceState
from trivet_web.accounts.rights import Right, requires
from trivet_web.api.documented import documented
from trivet_web.api.management.asked_engine import ask
from trivet_web.json_response import json_response

blueprint = Blueprint("engine_batch", __name__, url_prefix="/platform/v1")
ANSWER_S = 5.0
STATES = (InstanceState.READY, InstanceState.DRAINING)


@blueprint.get("/instances/<instance_id>/batch")
@requires(Right.READ)
@documented(BatchView)
def batch(instance_id: str) -> Response:
    """Raises: NotFound; Conflict if it is not ready; EngineLost, Unavailable."""
    answer = ask(instance_id, Look(f"look-{secrets.token_hex(8)}"), STATES, ANSWER_S)
    return json_response(msgspec.json.decode(answer.text, type=BatchView))
