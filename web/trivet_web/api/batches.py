"""/v1/batches: files of requests, answered when there is room."""

from __future__ import annotations

import time
from typing import Literal

import msgspec
from flask import Blueprint, Response

from trivet.errors import Conflict, NotFound, Overloaded, RequestError, Unavailable, UnsupportedParameter
from trivet_web.accounts.ownership import is_ones_own, owner_of_request
from trivet_web.accounts.principal import principal_of_request
from trivet_web.accounts.rights import Right, requires
from trivet_web.api.documented import documented
from trivet_web.api.files import known_file
from trivet_web.api.pages import QUERY, page_of_request
from trivet_web.api.request_body import read_body, refuse_unsupported
from trivet_web.batch.forms import URLS
from trivet_web.batch.stored_batch import ACTIVE, BatchObject
from trivet_web.json_response import json_response
from trivet_web.stored_objects import new_id
from trivet_web.web_process import web_process

blueprint = Blueprint("batches", __name__)
DEFAULT_LIMIT, MAX_LIMIT = 20, 100  # of a page; OpenAI's
WINDOW_S = 24 * 3600
MAX_OPEN = 1000  # of one user: each is looked at again and again
UNSUPPORTED: dict[str, tuple[object, ...]] = {"output_expires_after": ()}


class BatchRequest(msgspec.Struct, kw_only=True):
    """What is read of the body."""

    input_file_id: str
    endpoint: str
    completion_window: str = "24h"
    metadata: dict[str, str] | None = None


class BatchList(msgspec.Struct, frozen=True):
    """A page of those that are kept."""

    data: list[BatchObject]
    first_id: str | None
    last_id: str | None
    has_more: bool
    object: Literal["list"] = "list"


@blueprint.post("/v1/batches")
@requires(Right.INFER)
@documented(BatchObject, body=BatchRequest)
def create() -> Response:
    """Run a file of requests at low priority. Raises: RequestError, NotFound, Overloaded, Unavailable."""
    body = read_body(BatchRequest)
    refuse_unsupported(UNSUPPORTED)
    if body.endpoint not in URLS:
        raise UnsupportedParameter(
            f"endpoint is {body.endpoint[:80]!r}; it must be one of {', '.join(URLS)}", param="endpoint"
        )
    if body.completion_window != "24h":
        raise RequestError(
            f"completion_window is {body.completion_window[:80]!r}; it must be '24h'",
            param="completion_window",
        )
    known_file(body.input_file_id, "input_file_id")
    _check_open()
    process, now_s = web_process(), int(time.time())
    batch = BatchObject(
        id=new_id("batch"),
        endpoint=body.endpoint,
        input_file_id=body.input_file_id,
        completion_window=body.completion_window,
        status="validating",
        created_at=now_s,
        expires_at=now_s + WINDOW_S,
        metadata=body.metadata,
        owner=owner_of_request(),
        key_id=principal_of_request().key_id or msgspec.UNSET,
    )
    try:
        process.shelf.batches.put(batch.id, batch, leaves_room=True)
    except OSError as error:
        raise Unavailable(
            f"the batch cannot be kept: {error.strerror}; make room and send it again"
        ) from error
    process.wake_batches()
    return json_response(batch)


@blueprint.get("/v1/batches")
@requires(Right.INFER)
@documented(BatchList, query=QUERY)
def list_batches() -> Response:
    """Those that are kept, newest first. Raises: RequestError."""
    shelf = web_process().shelf
    found = [
        batch
        for batch_id in shelf.batches.ids()
        if (batch := shelf.batches.get(batch_id)) is not None and is_ones_own(batch.owner)
    ]
    page = page_of_request(found, "your batches", DEFAULT_LIMIT, MAX_LIMIT)
    shown = [shelf.shown(batch) for batch in page.data]
    return json_response(BatchList(shown, page.first_id, page.last_id, page.has_more))


@blueprint.get("/v1/batches/<batch_id>")
@requires(Right.INFER)
@documented(BatchObject)
def get_batch(batch_id: str) -> Response:
    """Raises: NotFound."""
    return json_response(_known(batch_id))


@blueprint.post("/v1/batches/<batch_id>/cancel")
@requires(Right.INFER)
@documented(BatchObject)
def cancel(batch_id: str) -> Response:
    """End it; what was answered can be had. Raises: NotFound; Conflict where it has ended."""
    batch = _known(batch_id)
    if batch.status not in (*ACTIVE, "cancelling"):
        raise _has_ended(batch)
    process = web_process()
    mark = process.shelf.cancel_mark(batch_id)
    mark.touch(mode=0o600)
    batch = _known(batch_id)
    if batch.status not in (*ACTIVE, "cancelling", "cancelled"):  # it ended meanwhile
        mark.unlink(missing_ok=True)
        raise _has_ended(batch)
    process.wake_batches()
    return json_response(batch)


def _check_open() -> None:
    """Raises: Overloaded."""
    owner = owner_of_request()
    num_open = sum(batch.owner == owner for batch in web_process().shelf.open_batches())
    if num_open >= MAX_OPEN:
        raise Overloaded(
            f"{num_open} of your batches have not ended, and at most {MAX_OPEN} may run or wait for a user; "
            "cancel some, or send this one when others have ended",
            retry_after_s=60,
        )


def _has_ended(batch: BatchObject) -> Conflict:
    return Conflict(f"batch {batch.id} is {batch.status}; it cannot be cancelled any more")


def _known(batch_id: str) -> BatchObject:
    """Raises: NotFound."""
    shelf = web_process().shelf
    batch = shelf.batches.get(batch_id)
    if batch is None or not is_ones_own(batch.owner):
        raise NotFound(f"batch {batch_id[:80]!r} does not exist, or is older than retention_days")
    return shelf.shown(batch)
