"""OpenAI's error object for requests that never reach the application: gunicorn or the worker refuses them.

gunicorn answers them with a page of HTML and offers no other form, so it writes its page to a stand-in
for the socket, and only the status is taken from there.
"""

from __future__ import annotations

import logging
import secrets
from http import HTTPStatus

import msgspec

from trivet_web.error_objects import ErrorBody, ErrorObject

logger = logging.getLogger(__name__)


class ErrorPage:
    """Takes what gunicorn writes, as a socket does."""

    def __init__(self) -> None:
        self._data = b""

    def gettimeout(self) -> float:
        """0: gunicorn need not make it non-blocking first."""
        return 0.0

    def sendall(self, data: bytes) -> None:
        self._data += data

    def as_json(self, reason: Exception) -> bytes:
        """The whole answer, with gunicorn's status."""
        status = HTTPStatus(int(self._data.split(b" ", 2)[1]))
        if status is HTTPStatus.INTERNAL_SERVER_ERROR:
            error = ErrorObject(
                "internal error; the server's log has it", "server_error", None, "server_error"
            )
        else:
            message = f"this is no HTTP request that can be read: {reason}; correct it and send it again"
            error = ErrorObject(message, "invalid_request_error", None, status.name.lower())
        return _answer(status, error)


def too_much_at_once() -> bytes:
    """To a client whose body there is no memory for."""
    error = ErrorObject(
        "the server holds too many large requests at once; send it again in a moment",
        "server_error",
        None,
        "unavailable",
    )
    return _answer(HTTPStatus.SERVICE_UNAVAILABLE, error, "Retry-After: 1\r\n")


def too_slow(limit_s: float) -> bytes:
    """To a client of whose request a part has come."""
    message = f"the request was not complete {limit_s:.0f} s after it began; send it at once"
    return _answer(
        HTTPStatus.REQUEST_TIMEOUT, ErrorObject(message, "invalid_request_error", None, "request_timeout")
    )


def no_tls_here() -> bytes:
    """To a client that greets in TLS: it can read only that this is none, and says so at once."""
    message = "this port speaks plain HTTP; ask for http://, or give the server tls_cert and tls_key"
    return _answer(HTTPStatus.BAD_REQUEST, ErrorObject(message, "invalid_request_error", None, "bad_request"))


def _answer(status: HTTPStatus, error: ErrorObject, header: str = "") -> bytes:
    request_id = secrets.token_hex(12)
    logger.warning("request_id=%s status=%d error=%s", request_id, status, error.message)
    body = msgspec.json.encode(ErrorBody(error))
    head = (
        f"HTTP/1.1 {status} {status.phrase}\r\nConnection: close\r\nX-Request-ID: {request_id}\r\n{header}"
        f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
    )
    return head.encode() + body
