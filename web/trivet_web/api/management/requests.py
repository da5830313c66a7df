"""/platform/v1/requests: the newest requests of all web processes, and the end of one that runs."""

from __future__ import annotations

import time

from flask import Blueprint, Response, request

from trivet.errors import NotFound
from trivet_web.accounts.acts import record
from trivet_web.accounts.principal import principal_of_request
from trivet_web.accounts.rights import Right, requires
from trivet_web.accounts.site_accounts import site_accounts
from trivet_web.answers.request_log import LENGTH, RUNNING, RequestEnded
from trivet_web.answers.shared_requests import RequestObject, newest_first, request_object
from trivet_web.api.documented import documented
from trivet_web.api.management.objects import Listing
from trivet_web.api.management.observations import whole_number
from trivet_web.json_response import json_response
from trivet_web.web_process import web_process

blueprint = Blueprint("requests", __name__, url_prefix="/platform/v1/requests")


@blueprint.get("")
@requires(Right.READ)
@documented(Listing[RequestObject], query={"limit": int, "deployment": str})
def list_newest() -> Response:
    """Running ones first. Neither prompts nor answers are kept. Raises: RequestError."""
    limit, deployment = whole_number("limit", 200, 1, LENGTH), request.args.get("deployment")
    process, now_s = web_process(), time.monotonic()
    own = (request_object(one, now_s) for one in process.requests.newest(LENGTH))
    found = newest_first([*own, *process.shared_requests.others()])
    shown = [one for one in found if deployment is None or one.model == deployment]
    return json_response(Listing(shown[:limit]))


@blueprint.delete("/<request_id>")
@requires(Right.OPERATE)
@documented(status=204)
def stop(request_id: str) -> Response:
    """End one that runs, within a second: its client is told so. Raises: NotFound."""
    process = web_process()
    entry = process.requests.running(request_id)
    others = () if entry else process.shared_requests.others()
    shared = next((one for one in others if (one.id, one.status) == (request_id, RUNNING)), None)
    one = entry or shared
    if one is None:
        raise NotFound(f"no request {request_id!r} runs", param="request_id")
    with site_accounts().database.session() as session:
        record(session, "request.stop", f"request {request_id}", after={"model": one.model, "who": one.who})
    reason = f"the request was ended by {principal_of_request().name}; send it again if need be"
    if entry is None:
        process.shared_requests.ask_for_end(request_id, reason)
    else:
        entry.stop(RequestEnded(reason))
    return Response(status=204)
