"""GET /platform/v1/instances/INSTANCE/batch: what an engine holds now, asked of the engine itself."""

from __future__ import annotations

import secrets

import msgspec
from flask import Blueprint, Response

from trivet.engine.batch_view import BatchView
from trivet.errors import Conflict, Unavailable
from trivet.messages import Look
from trivet_registry.instance_state import InstanceState
from trivet_registry.instances_store import get_instance
from trivet_web.accounts.rights import Right, requires
from trivet_web.api.documented import documented
from trivet_web.engines.mailbox import Loss, Mailbox
from trivet_web.json_response import json_response
from trivet_web.web_process import web_process

blueprint = Blueprint("engine_batch", __name__, url_prefix="/platform/v1")
ANSWER_S = 5.0  # it answers between two steps


@blueprint.get("/instances/<instance_id>/batch")
@requires(Right.READ)
@documented(BatchView)
def batch(instance_id: str) -> Response:
    """Raises: NotFound; Conflict if it is not ready; EngineLost, Unavailable."""
    process = web_process()
    with process.database.reading() as session:
        state = get_instance(session, instance_id).state
    if state not in (InstanceState.READY, InstanceState.DRAINING):
        raise Conflict(f"instance {instance_id} is {state}; only one that is ready has a batch")
    look, mailbox = Look(f"look-{secrets.token_hex(8)}"), Mailbox()
    process.relay.submit(instance_id, look, mailbox, 0)
    items = mailbox.read(ANSWER_S)
    if not items:
        process.relay.abort(instance_id, look.request_id)
        raise Unavailable(f"instance {instance_id} did not answer within {ANSWER_S:.0f} s: a step takes long")
    if isinstance(items[0], Loss):
        raise items[0].error
    if items[0].piece.failure is not None:
        raise Unavailable(items[0].piece.failure.message)
    return json_response(msgspec.json.decode(items[0].piece.text, type=BatchView))
