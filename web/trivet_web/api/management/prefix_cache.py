"""POST /platform/v1/instances/INSTANCE/reset-prefix-cache: an engine forgets every prefix it has kept."""

from __future__ import annotations

import secrets

import msgspec
from flask import Blueprint, Response

from trivet.messages import ResetPrefixCache
from trivet_registry.instance_state import InstanceState
from trivet_web.accounts.acts import record
from trivet_web.accounts.rights import Right, requires
from trivet_web.api.documented import documented
from trivet_web.api.management.asked_engine import ask
from trivet_web.json_response import json_response
from trivet_web.web_process import web_process

blueprint = Blueprint("prefix_cache", __name__, url_prefix="/platform/v1")
ANSWER_S = 60.0


class PrefixCacheReset(msgspec.Struct, frozen=True):
    """What was forgotten."""

    instance: str
    forgotten_tokens: int


@blueprint.post("/instances/<instance_id>/reset-prefix-cache")
@requires(Right.OPERATE)
@documented(PrefixCacheReset)
def reset(instance_id: str) -> Response:
    """Running sequences go on. Raises: NotFound; Conflict if it is not ready; EngineLost, Unavailable."""
    request = ResetPrefixCache(f"reset-{secrets.token_hex(8)}")
    answer = ask(instance_id, request, (InstanceState.READY,), ANSWER_S)
    with web_process().database.session() as session:
        record(session, "instance.reset_prefix_cache", instance_id)
    return json_response(PrefixCacheReset(instance_id, answer.cached_tokens))
