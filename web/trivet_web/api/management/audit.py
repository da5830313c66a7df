"""/platform/v1/audit: who did what, and whether that is what was written."""

from __future__ import annotations

from flask import Blueprint, Response, request

from trivet.errors import RequestError
from trivet_registry.audit_log import list_entries, verify
from trivet_web.accounts.rights import Right, requires
from trivet_web.accounts.site_accounts import site_accounts
from trivet_web.api.documented import documented
from trivet_web.api.management.account_objects import AuditObject, VerdictObject, audit_object
from trivet_web.api.management.objects import Listing
from trivet_web.json_response import json_response

blueprint = Blueprint("audit", __name__, url_prefix="/platform/v1/audit")
MAX_LIMIT = 1000


@blueprint.get("")
@requires(Right.ADMINISTER)
@documented(Listing[AuditObject], query={"limit": int, "before": int, "action": str})
def entries() -> Response:
    """The newest first; `before` goes on after an id. Raises: RequestError."""
    limit = _number("limit", 100) or 100
    with site_accounts().database.reading() as session:
        rows = list_entries(
            session, min(limit, MAX_LIMIT), _number("before", None), request.args.get("action")
        )
        return json_response(Listing([audit_object(row) for row in rows]))


@blueprint.get("/verify")
@requires(Right.ADMINISTER)
@documented(VerdictObject, query={"anchor": str})
def verdict() -> Response:
    """Read the whole chain and name the first row that was edited or removed. Raises: RequestError."""
    with site_accounts().database.reading() as session:
        found = verify(session, request.args.get("anchor"))
    return json_response(
        VerdictObject(
            is_whole=found.fault is None,
            fault=found.fault,
            entries=found.last_id,
            anchor=f"{found.last_id}:{found.hash}",
        )
    )


def _number(name: str, default: int | None) -> int | None:
    """Raises: RequestError."""
    text = request.args.get(name)
    if text is None:
        return default
    if not text.isdecimal() or len(text) > 9:
        raise RequestError(f"{name} is {text[:40]!r}; it must be a whole number", param=name)
    return int(text)
