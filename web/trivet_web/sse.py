"""Server-sent events: an answer as a stream of chunks that ends well, or with an error event.

Headers leave with the first piece or after `FIRST_PIECE_WAIT_S`, whichever is sooner: until then a
failure still has its own HTTP status, and a proxy is not left without a sign of life for long.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator

import msgspec
from flask import Response

from trivet.errors import TrivetError
from trivet_web.answer import Answer
from trivet_web.error_objects import error_body
from trivet_web.mailbox import Arrival, ClientGone

logger = logging.getLogger(__name__)

FIRST_PIECE_WAIT_S = 5.0
PING_S = 15.0  # proxies close connections that are silent for longer, often after a minute
_PING = b": ping\n\n"
_DONE = b"data: [DONE]\n\n"
_encode = msgspec.json.Encoder().encode


class Chunks:
    """What turns pieces into the objects of one API."""

    def of(self, arrivals: list[Arrival]) -> Iterable[msgspec.Struct]:
        """Chunks that these arrivals make; may be none."""
        raise NotImplementedError

    def last(self) -> Iterable[msgspec.Struct]:
        """What follows when every sequence has ended: the usage, if asked for."""
        raise NotImplementedError


class EventStream:
    """Iterates over the bytes of the stream. `close` releases everything, begun or not."""

    def __init__(
        self, answer: Answer, chunks: Chunks, first: list[Arrival], on_close: Callable[[], None]
    ) -> None:
        self._on_close = on_close
        self._events = _events(answer, chunks, first)

    def __iter__(self) -> Iterator[bytes]:
        return self._events

    def close(self) -> None:
        self._on_close()


def stream_response(answer: Answer, chunks: Chunks, on_close: Callable[[], None]) -> Response:
    """`on_close` is called once the client has everything, or has gone.

    Raises: what ended the answer before its first piece; `on_close` is the caller's then.
    """
    first = answer.read(FIRST_PIECE_WAIT_S)
    response = Response(EventStream(answer, chunks, first, on_close), mimetype="text/event-stream")
    response.headers["Cache-Control"] = "no-cache"
    response.headers["X-Accel-Buffering"] = "no"
    return response


def _events(answer: Answer, chunks: Chunks, first: list[Arrival]) -> Iterator[bytes]:
    arrivals = first
    try:
        while True:
            # One write for all that has come: a write a chunk costs a system call each.
            data = b"".join(_event(chunk) for chunk in chunks.of(arrivals))
            if not answer.num_open:
                yield data + b"".join(_event(chunk) for chunk in chunks.last()) + _DONE
                return
            if data:
                yield data
            elif not arrivals:
                yield _PING
            arrivals = answer.read(PING_S)
    except ClientGone:
        return
    except TrivetError as error:
        logger.warning("instance=%s stream ended: %s", answer.instance_of(0), error)
        yield _event(error_body(error))
    except Exception:  # the HTTP border, behind the point where Flask's own handler could answer
        logger.exception("instance=%s stream failed", answer.instance_of(0))
        yield _event(error_body(TrivetError("internal error; the server's log has it")))


def _event(value: msgspec.Struct) -> bytes:
    return b"data: " + _encode(value) + b"\n\n"
