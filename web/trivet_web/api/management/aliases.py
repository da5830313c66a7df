"""/platform/v1/aliases: movable names of versions."""

from __future__ import annotations

import msgspec
from flask import Blueprint, Response, request

from trivet_registry.aliases_store import (
    alias_history,
    list_aliases,
    remove_alias,
    roll_back_alias,
    set_alias,
)
from trivet_web.accounts.acts import record
from trivet_web.accounts.rights import Right, requires
from trivet_web.api.documented import documented
from trivet_web.api.management.objects import (
    AliasMoveObject,
    AliasObject,
    Listing,
    alias_object,
    move_object,
)
from trivet_web.api.request_body import read_body
from trivet_web.json_response import json_response
from trivet_web.web_process import web_process

blueprint = Blueprint("management_aliases", __name__, url_prefix="/platform/v1/aliases")


class AliasRequest(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """Where it shall point: a version's number, or another alias of the model."""

    version: str


@blueprint.get("")
@requires(Right.READ)
@documented(Listing[AliasObject], query={"model": str})
def list_all() -> Response:
    """Of one model, or of all. Raises: ModelNotFound."""
    with web_process().database.reading() as session:
        rows = list_aliases(session, request.args.get("model") or None)
        return json_response(Listing([alias_object(row) for row in rows]))


@blueprint.put("/<model>/<alias>")
@requires(Right.OPERATE)
@documented(AliasObject, body=AliasRequest)
def put(model: str, alias: str) -> Response:
    """Make it, or move it: running deployments that follow it are updated.

    Raises: ModelNotFound, RequestError.
    """
    body = read_body(AliasRequest)
    process = web_process()
    with process.database.session() as session:
        made = alias_object(set_alias(session, model, alias, body.version))
        record(session, "alias.set", f"{model}:{alias}", after={"version": made.version})
    process.supervisor.wake()
    return json_response(made)


@blueprint.post("/<model>/<alias>/roll-back")
@requires(Right.OPERATE)
@documented(AliasObject)
def roll_back(model: str, alias: str) -> Response:
    """Point it at what it pointed at before. Raises: ModelNotFound, NotFound, Conflict."""
    process = web_process()
    with process.database.session() as session:
        made = alias_object(roll_back_alias(session, model, alias))
        record(session, "alias.roll_back", f"{model}:{alias}", after={"version": made.version})
    process.supervisor.wake()
    return json_response(made)


@blueprint.get("/<model>/<alias>/history")
@requires(Right.READ)
@documented(Listing[AliasMoveObject])
def history(model: str, alias: str) -> Response:
    """Its moves, the newest first. Raises: ModelNotFound."""
    with web_process().database.reading() as session:
        return json_response(Listing([move_object(row) for row in alias_history(session, model, alias)]))


@blueprint.delete("/<model>/<alias>")
@requires(Right.OPERATE)
@documented(status=204)
def remove(model: str, alias: str) -> Response:
    """Raises: ModelNotFound, NotFound; Conflict while a deployment follows it."""
    with web_process().database.session() as session:
        remove_alias(session, model, alias)
        record(session, "alias.remove", f"{model}:{alias}")
    return Response(status=204)
