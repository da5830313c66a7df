"""/platform/v1/requests: the newest requests of this web process, and the end of one that runs."""

from __future__ import annotations

import time
from datetime import UTC, datetime

import msgspec
from flask import Blueprint, Response, request

from trivet.errors import NotFound, Unavailable
from trivet_web.accounts.acts import record
from trivet_web.accounts.principal import principal_of_request
from trivet_web.accounts.rights import Right, requires
from trivet_web.accounts.site_accounts import site_accounts
from trivet_web.answers.request_log import LENGTH, Entry
from trivet_web.api.documented import documented
from trivet_web.api.management.objects import Listing
from trivet_web.api.management.observations import whole_number
from trivet_web.json_response import json_response
from trivet_web.web_process import web_process

blueprint = Blueprint("requests", __name__, url_prefix="/platform/v1/requests")


class RequestObject(msgspec.Struct, frozen=True):
    """One request; times are seconds, null where it is not so far.

    `prepare_s` is template and tokenizer, `queue_s` the engine's queue, `prefill_s` until the first token,
    `decode_s` from there on, `total_s` from its arrival until now or its end.
    """

    id: str
    at: datetime
    model: str
    route: str
    who: str
    instance: str
    is_streamed: bool
    status: str  # running, done, failed or cancelled
    reason: str
    prompt_tokens: int
    cached_tokens: int
    completion_tokens: int
    prepare_s: float | None
    queue_s: float | None
    prefill_s: float | None
    decode_s: float | None
    total_s: float


@blueprint.get("")
@requires(Right.READ)
@documented(Listing[RequestObject], query={"limit": int, "deployment": str})
def list_newest() -> Response:
    """Running ones first. Neither prompts nor answers are kept. Raises: RequestError."""
    limit, deployment = whole_number("limit", 200, 1, LENGTH), request.args.get("deployment")
    now_s = time.monotonic()
    found = web_process().requests.newest(LENGTH)
    shown = [one for one in found if deployment is None or one.model == deployment]
    return json_response(Listing([_object(one, now_s) for one in shown[:limit]]))


@blueprint.delete("/<request_id>")
@requires(Right.OPERATE)
@documented(status=204)
def stop(request_id: str) -> Response:
    """End one that runs: its client is told so. Raises: NotFound."""
    entry = web_process().requests.running(request_id)
    if entry is None:
        raise NotFound(f"no request {request_id!r} runs in this web process", param="request_id")
    with site_accounts().database.session() as session:
        record(
            session, "request.stop", f"request {request_id}", after={"model": entry.model, "who": entry.who}
        )
    entry.stop(
        Unavailable(f"the request was ended by {principal_of_request().name}; send it again if need be")
    )
    return Response(status=204)


def _object(one: Entry, now_s: float) -> RequestObject:
    course, end_s = one.course, one.ended_s or now_s
    prefill_s = None
    if course.first_s is not None and course.sent_s is not None:
        prefill_s = max(0.0, course.first_s - course.sent_s - (course.queue_s or 0.0))
    return RequestObject(
        id=one.id,
        at=datetime.fromtimestamp(one.at_s, UTC),
        model=one.model,
        route=one.route,
        who=one.who,
        instance=course.instance,
        is_streamed=one.is_streamed,
        status=one.status,
        reason=one.reason,
        prompt_tokens=one.prompt_tokens,
        cached_tokens=one.cached_tokens,
        completion_tokens=one.completion_tokens,
        prepare_s=None if course.sent_s is None else course.sent_s - one.begun_s,
        queue_s=course.queue_s,
        prefill_s=prefill_s,
        decode_s=None if course.first_s is None else end_s - course.first_s,
        total_s=end_s - one.begun_s,
    )
