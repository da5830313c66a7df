"""POST /platform/v1/instances/INSTANCE/reset-prefix-cache: an engine forgets every prefix it has kept."""

from __future__ import annotations

import secrets

import msgspec
from flask import Blueprint, Response

from trivet.errors import Conflict, Unavailable
from trivet.messages import ResetPrefixCache
from trivet_registry.instance_state import InstanceState
from trivet_registry.instances_store import get_instance
from trivet_web.accounts.acts import record
from trivet_web.accounts.rights import Right, requires
from trivet_web.api.documented import documented
from trivet_web.engines.mailbox import Loss, Mailbox
from trivet_web.json_response import json_response
from trivet_web.web_process import web_process

blueprint = Blueprint("prefix_cache", __name__, url_prefix="/platform/v1")
ANSWER_S = 60.0  # it answers between two steps


class PrefixCacheReset(msgspec.Struct, frozen=True):
    """What was forgotten."""

    instance: str
    forgotten_tokens: int


@blueprint.post("/instances/<instance_id>/reset-prefix-cache")
@requires(Right.OPERATE)
@documented(PrefixCacheReset)
def reset(instance_id: str) -> Response:
    """Running sequences go on. Raises: NotFound; Conflict if it is not ready; EngineLost, Unavailable."""
    process = web_process()
    with process.database.reading() as session:
        state = get_instance(session, instance_id).state
    if state != InstanceState.READY:
        raise Conflict(f"instance {instance_id} is {state}; only one that is ready has a cache to reset")
    request, mailbox = ResetPrefixCache(f"reset-{secrets.token_hex(8)}"), Mailbox()
    process.relay.submit(instance_id, request, mailbox, 0)
    items = mailbox.read(ANSWER_S)
    if not items:
        process.relay.abort(instance_id, request.request_id)
        raise Unavailable(f"instance {instance_id} did not answer within {ANSWER_S:.0f} s; try again")
    if isinstance(items[0], Loss):
        raise items[0].error
    with process.database.session() as session:
        record(session, "instance.reset_prefix_cache", instance_id)
    return json_response(PrefixCacheReset(instance_id, items[0].piece.cached_tokens))
