"""OpenAI's error object, or that of the dialect (dialects/) whose route was asked: how a failure leaves.

One of the three borders where every exception is caught: what Trivet raised on purpose carries its
status and code (trivet/errors.py); anything else is a 500 that names the request id in the log.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any, TypeAlias

import msgspec
from flask import Flask, Response, current_app, request
from sqlalchemy.exc import DataError, OperationalError, SQLAlchemyError
from sqlalchemy.exc import TimeoutError as PoolTimeout
from werkzeug.exceptions import HTTPException

from trivet.errors import RequestError, TrivetError, Unavailable
from trivet_web.engines.fallback import answer_of_fallback, first_failure
from trivet_web.field_names import in_names_of_client
from trivet_web.request_name import request_id

logger = logging.getLogger(__name__)
_ADAPTERS = (
    "adapters (LoRA) are loaded by the launch or an update, which names all that the model shall have: "
    "`trivet update NAME --adapter NAME=FOLDER --adapter NAME=FOLDER`"
)
_ABSENT = {f"/v1/{what}_lora_adapter": _ADAPTERS for what in ("load", "unload")}  # routes of vLLM
_TYPES = {401: "authentication_error", 403: "permission_error", 429: "rate_limit_error"}


class ErrorObject(msgspec.Struct, frozen=True):
    """What clients find under `error`."""

    message: str
    type: str
    param: str | None
    code: str


class ErrorBody(msgspec.Struct, frozen=True):
    """The body of an answer that failed, or an event in a stream that failed."""

    error: ErrorObject
    detail: str | msgspec.UnsetType = msgspec.UNSET  # under /v1: the message, for Xinference's clients


# The body of a dialect and its status, from the error and the status that it has here.
ErrorForm: TypeAlias = Callable[[ErrorObject, int], tuple[msgspec.Struct, int]]
_FORM_OF = "trivet.error_form_of"


def error_body(error: TrivetError) -> ErrorBody:
    """The one place where an exception becomes an object on the wire."""
    kind = _TYPES.get(error.status, "invalid_request_error" if error.status < 500 else "server_error")
    return ErrorBody(ErrorObject(error.message, kind, getattr(error, "param", None), error.code))


def register(app: Flask, form_of: Callable[[str, str], ErrorForm | None] = lambda method, path: None) -> None:
    """Make every failure of `app` an error object; `form_of` knows dialects by method and path."""
    app.extensions[_FORM_OF] = form_of
    app.register_error_handler(TrivetError, _on_trivet_error)
    app.register_error_handler(OperationalError, _on_registry_error)
    app.register_error_handler(PoolTimeout, _on_registry_error)
    app.register_error_handler(DataError, _on_data_error)
    app.register_error_handler(HTTPException, _on_http_exception)
    app.register_error_handler(Exception, _on_exception)


def _on_trivet_error(error: TrivetError) -> Response:
    return answer_of_fallback(error) or _failed(first_failure(error))


def _failed(error: TrivetError) -> Response:
    if error.status >= 500:
        logger.warning("request_id=%s status=%d error=%s", request_id(), error.status, error)
    told = error_body(error)
    if error.status == 400:  # of an engine it has no class of its own
        message, param = in_names_of_client(error.message, told.error.param)
        told = ErrorBody(msgspec.structs.replace(told.error, message=message, param=param))
    response = _response(told, error.status)
    retry_after_s = getattr(error, "retry_after_s", None)
    if retry_after_s is not None:
        response.headers["Retry-After"] = str(retry_after_s)
    if error.status == 401:
        response.headers["WWW-Authenticate"] = "Bearer"
    return response


def _on_registry_error(error: SQLAlchemyError) -> Response:
    """A full disk, a database that is away: nobody's defect, and it passes."""
    reason = getattr(error, "orig", error)
    return _failed(Unavailable(f"the registry cannot be used: {reason}; try again when it can"))


def _on_data_error(error: DataError) -> Response:
    """A number or text that no column of the registry holds, which PostgreSQL alone refuses to look for."""
    logger.info("request_id=%s value out of range: %s", request_id(), error.orig)
    return _failed(RequestError(f"a value of the request is none that can be stored: {error.orig}"))


def _instead(path: str) -> str:
    """Of a path that does not exist; a client's base URL often lacks its /v1, or has it twice."""
    routes = current_app.create_url_adapter(request)
    near = path.removeprefix("/v1") if path.startswith("/v1/") else f"/v1{path}"
    if routes is not None and routes.test(near, request.method):
        return f"did you mean {near}? Look at the base URL that the client was given"
    return _ABSENT.get(path, "see /v1/models and /platform/v1/status")


def _on_http_exception(error: HTTPException) -> Response:
    """Werkzeug's own: no such route, wrong method, body too large."""
    status = error.code or 500
    code = (error.name or "error").lower().replace(" ", "_")
    message = error.description or error.name
    if status == 404:
        message = f"{request.method} {request.path} does not exist; {_instead(request.path)}"
    elif status == 405:
        allowed = ", ".join(sorted(getattr(error, "valid_methods", None) or ()))
        message = f"{request.path} does not take {request.method}; it takes {allowed}"
    kind = "invalid_request_error" if status < 500 else "server_error"
    response = _response(ErrorBody(ErrorObject(message, kind, None, code)), status)
    for name, value in error.get_headers():
        if name.lower() not in ("content-type", "content-length"):
            response.headers[name] = value
    return response


def _on_exception(error: Exception) -> Response:
    where = f"{request.method} {request.path!r}"  # it may hold line breaks
    logger.error("request_id=%s status=500 %s", request_id(), where, exc_info=error)
    message = f"internal error; the server's log has it under request {request_id()}"
    return _response(ErrorBody(ErrorObject(message, "server_error", None, "server_error")), 500)


def _response(body: ErrorBody, status: int) -> Response:
    shown: Any = body
    if (form := current_app.extensions[_FORM_OF](request.method, request.path)) is not None:
        shown, status = form(body.error, status)
    return Response(msgspec.json.encode(shown), status, mimetype="application/json")
