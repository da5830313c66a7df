"""/v1/responses/ID: those that are stored, if `store_responses` is on: read, deleted, gone on from."""

from __future__ import annotations

import msgspec
from flask import Blueprint, Response, request

from trivet.errors import NotFound, RequestError, UnsupportedParameter
from trivet_web.accounts.ownership import is_ones_own
from trivet_web.accounts.rights import Right, requires
from trivet_web.api.conversation import Message
from trivet_web.api.documented import documented
from trivet_web.api.pages import QUERY, page_of_request
from trivet_web.api.responses_objects import DeletedResponse, InputItemList, ResponseObject, StoredItem
from trivet_web.api.responses_request import ResponseRequest
from trivet_web.json_response import json_response
from trivet_web.stored_objects import StoredObjects
from trivet_web.web_process import WebProcess, web_process

blueprint = Blueprint("responses_stored", __name__)
MAX_ITEMS, DEFAULT_ITEMS = 100, 20  # of a page; OpenAI's


class StoredResponse(msgspec.Struct, frozen=True):
    """A response, the whole conversation up to its end without instructions, and what its request added."""

    response: ResponseObject
    messages: list[Message]
    items: list[StoredItem] = []
    owner: str | msgspec.UnsetType = msgspec.UNSET  # Principal.owner


@blueprint.get("/v1/responses/<response_id>")
@requires(Right.INFER)
@documented(ResponseObject)
def get_response(response_id: str) -> Response:
    """Raises: NotFound, UnsupportedParameter."""
    if request.args.get("stream", "false") != "false":
        raise UnsupportedParameter(
            "stream is asked for; a stored response is whole: leave stream out", param="stream"
        )
    return json_response(_stored(response_id).response)


@blueprint.delete("/v1/responses/<response_id>")
@requires(Right.INFER)
@documented(DeletedResponse)
def delete_response(response_id: str) -> Response:
    """Raises: NotFound, UnsupportedParameter."""
    _stored(response_id)
    store_of(web_process()).remove(response_id)
    return json_response(DeletedResponse(response_id))


@blueprint.post("/v1/responses/<response_id>/cancel")
@requires(Right.INFER)
@documented(ResponseObject)
def cancel_response(response_id: str) -> Response:
    """Raises: RequestError always: only those that run in the background can be cancelled."""
    _stored(response_id)
    raise RequestError(
        f"response {response_id!r} has ended, and none runs in the background here; close the connection to "
        "end one that is being made"
    )


@blueprint.get("/v1/responses/<response_id>/input_items")
@requires(Right.INFER)
@documented(InputItemList, query=QUERY)
def list_input_items(response_id: str) -> Response:
    """What the request of a response added to its conversation. Raises: NotFound, RequestError."""
    items = _stored(response_id).items
    page = page_of_request(items[::-1], response_id, DEFAULT_ITEMS, MAX_ITEMS)
    return json_response(InputItemList(page.data, page.first_id, page.last_id, has_more=page.has_more))


def is_to_be_stored(body: ResponseRequest) -> bool:
    """OpenAI stores what is not said otherwise; here the site decides. Raises: UnsupportedParameter."""
    if web_process().settings.store_responses:
        return body.store is not False
    if body.store:
        raise _not_stored("store is true", "store: leave it out or send false", "store")
    return False


def messages_before(body: ResponseRequest) -> list[Message]:
    """The conversation that a request goes on with. Raises: NotFound, UnsupportedParameter."""
    if body.previous_response_id is None:
        return []
    return _stored(body.previous_response_id, "previous_response_id").messages


def store_of(process: WebProcess) -> StoredObjects[StoredResponse]:
    """Where they are kept."""
    return process.stored("responses", StoredResponse)


def _stored(response_id: str, param: str | None = None) -> StoredResponse:
    """Raises: NotFound, UnsupportedParameter where nothing is stored here."""
    process = web_process()
    if not process.settings.store_responses:
        what = f"response {response_id[:80]!r} is asked for"
        raise _not_stored(what, "them: send the whole conversation as input", param)
    stored = store_of(process).get(response_id)
    if stored is None or not is_ones_own(stored.owner):
        raise NotFound(
            f"response {response_id[:80]!r} does not exist: it was not stored, was deleted, or is older than "
            f"{process.settings.retention_days:g} days (retention_days)",
            param=param,
        )
    return stored


def _not_stored(what: str, instead: str, param: str | None) -> UnsupportedParameter:
    return UnsupportedParameter(
        f"{what} and this site stores no responses; set store_responses = true in trivet.toml, or do without "
        f"{instead}",
        param=param,
    )
