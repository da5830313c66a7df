"""From the server's error object back to the exception of `trivet.errors` that it came from."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from math import ceil

import msgspec

from trivet import errors
from trivet.client.retries import retry_after_s
from trivet.errors import DeadlinePassed, Overloaded, RequestError, TrivetError

_MARKUP = re.compile(rb"<(style|script)\b.*?</\1>|<[^>]*>", re.DOTALL | re.IGNORECASE)


class ErrorObject(msgspec.Struct, frozen=True):
    """OpenAI's error object; `code` is a word of `trivet.errors`, or another server's."""

    message: str = ""
    type: str | None = None
    param: str | None = None
    code: str | int | None = None


class ErrorBody(msgspec.Struct, frozen=True):
    """The body of every answer that is an error."""

    error: ErrorObject


class ErrorEvent(ErrorObject, frozen=True):
    """An error event in a stream: a body, or in `/v1/responses` the error object itself."""

    error: ErrorObject | None = None


def failure_of(status: int, body: bytes, headers: Mapping[str, str]) -> TrivetError:
    """The exception for an answer with an error status; the text of a foreign body is quoted in short."""
    try:
        error = msgspec.json.decode(body, type=ErrorBody).error
    except msgspec.MsgspecError:
        text = " ".join(_MARKUP.sub(b" ", body)[:200].decode("utf-8", "replace").split())
        error = ErrorObject(message=f"the server answered {status}, not as Trivet does: {text or 'no body'}")
    wait_s = retry_after_s(headers)
    return failure(error, status, None if wait_s is None else ceil(wait_s))


def failure(error: ErrorObject, status: int | None = None, retry_after_s: int | None = None) -> TrivetError:
    """The exception whose code is `error.code`, else the nearest for `status` (None: inside a stream)."""
    kind = _BY_CODE.get(str(error.code)) or _BY_STATUS.get(status or 500)
    if kind is None:
        kind = RequestError if 400 <= (status or 500) < 500 else TrivetError
    message = error.message or f"the server answered {status} without a message"
    if issubclass(kind, Overloaded | DeadlinePassed):
        return kind(message, retry_after_s=retry_after_s or 1)
    if issubclass(kind, errors.Unavailable):
        return kind(message, retry_after_s=retry_after_s)
    if issubclass(kind, RequestError):
        return kind(message, param=error.param)
    return kind(message)


def _tree(root: type[TrivetError]) -> Iterator[type[TrivetError]]:
    yield root
    for child in root.__subclasses__():
        if child.__module__ == errors.__name__:  # a plugin's own may want other arguments
            yield from _tree(child)


_BY_CODE = {kind.code: kind for kind in _tree(TrivetError)}
_BY_STATUS: dict[int, type[TrivetError]] = {
    401: errors.AuthenticationError,
    403: errors.PermissionDenied,
    404: errors.NotFound,
    409: errors.Conflict,
    413: errors.RequestTooLarge,
    429: errors.Overloaded,
    502: errors.Unavailable,
    503: errors.Unavailable,
    504: errors.Unavailable,
}
