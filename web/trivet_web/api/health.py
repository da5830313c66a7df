"""Health for people, load balancers and orchestrators; none of it needs a token."""

from __future__ import annotations

from typing import Any

from flask import Blueprint, Response

import trivet
from trivet_web.accounts.rights import Right, requires
from trivet_web.accounts.site_accounts import site_accounts
from trivet_web.api.documented import documented
from trivet_web.json_response import json_response
from trivet_web.web_process import web_process

blueprint = Blueprint("health", __name__)


@blueprint.get("/health")
@blueprint.get("/health/live")
@requires(Right.NOTHING)
@documented(dict[str, str])
def live() -> Response:
    """This process answers."""
    return json_response({"status": "ok"})


@blueprint.get("/health/ready")
@requires(Right.NOTHING)
@documented(dict[str, Any], failed=dict[str, Any])
def ready() -> Response:
    """200 while at least one model can serve, else 503 with the reason."""
    process = web_process()
    table = process.router.table()
    serving = sorted(name for name, deployed in table.items() if process.router.can_serve(deployed))
    if process.is_draining:
        reason = "the web server is shutting down"
    elif serving:
        shown = {"models": serving} if site_accounts().is_open() else {}  # names are not for strangers
        return json_response({"status": "ready", **shown})
    elif not table:
        reason = "no model is deployed; launch one with `trivet launch MODEL`"
    else:
        reason = "no model can serve now; trivet ps says why"
        if site_accounts().is_open():
            reason = "; ".join(f"{name}: {process.router.why_not(table[name])}" for name in sorted(table))
    return json_response({"status": "unready", "reason": reason}, 503)


@blueprint.get("/version")
@requires(Right.NOTHING)
@documented(dict[str, str])
def version() -> Response:
    """The version of this server."""
    return json_response({"version": trivet.__version__})
