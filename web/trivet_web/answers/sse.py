"""Server-sent events, or lines of JSON: an answer as chunks, which end well or with an error event.

Headers leave with the first piece or after `FIRST_PIECE_WAIT_S`, whichever is sooner: until then a
failure still has its own HTTP status, and a proxy is not left without a sign of life for long.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable, Iterator
from typing import Protocol

import msgspec
from flask import Response

from trivet.errors import TrivetError
from trivet_web.answers.answer import Answer
from trivet_web.engines.mailbox import Arrival, ClientGone
from trivet_web.error_objects import error_body
from trivet_web.request_name import request_id
from trivet_web.stream_worker.handover import handover_of_request, when_something_came

logger = logging.getLogger(__name__)

FIRST_PIECE_WAIT_S = 5.0
PING_S = 15.0  # proxies close connections that are silent for longer, often after a minute
PING = b": ping\n\n"
DONE = b"data: [DONE]\n\n"
_encode = msgspec.json.Encoder().encode


class Chunks:
    """What turns pieces into the objects of one API."""

    __slots__ = ()
    media_type = "text/event-stream"
    ping = PING  # a sign of life that clients skip
    end = DONE  # after the last event

    def event(self, value: msgspec.Struct) -> bytes:
        """One object on the wire."""
        return _event(value)

    def encoded(self, arrivals: list[Arrival]) -> bytes:
        """Their chunks on the wire."""
        event = self.event
        return b"".join([event(chunk) for chunk in self.of(arrivals)])

    def of(self, arrivals: list[Arrival]) -> Iterable[msgspec.Struct]:
        """Chunks that these arrivals make; may be none."""
        raise NotImplementedError

    def last(self) -> Iterable[msgspec.Struct]:
        """What follows when every sequence has ended: the usage, if asked for."""
        raise NotImplementedError

    def failed(self, error: TrivetError) -> bytes:
        """In place of what would have followed."""
        return _event(error_body(error))


class Exchange(Protocol):
    """One API request on its way to engines (`api/inference.py`)."""

    answer: Answer

    def close(self) -> None:
        """Release everything. Idempotent."""
        ...


class EventStream:
    """The bytes of the stream, taken by whoever waits: a thread that iterates, or the pump of the worker."""

    __slots__ = ("_answer", "_chunks", "_exchange", "_first", "_request_id", "is_over", "mailbox", "ping")

    def __init__(self, exchange: Exchange, chunks: Chunks, first: list[Arrival]) -> None:
        self.mailbox = exchange.answer.mailbox
        self.is_over = False
        self.ping = chunks.ping
        self._exchange = exchange
        self._answer = exchange.answer
        self._chunks = chunks
        self._first = first
        self._request_id = request_id()
        if self.mailbox.ends_slowly and not self._answer.num_open:  # the end is in `first`
            self.mailbox.may_wait = True

    def __iter__(self) -> Iterator[bytes]:
        due_s = time.monotonic() + PING_S
        while not self.is_over:
            data = self.take(max(0.0, due_s - time.monotonic()))
            if not data and time.monotonic() >= due_s:
                data = self.ping
            if data:  # what came may make no event
                yield data
                due_s = time.monotonic() + PING_S

    @property
    def has_more(self) -> bool:
        """Whether `take` would not wait."""
        return bool(self.mailbox.num_unread or self._first or self._answer.error is not None)

    def take(self, timeout_s: float) -> bytes | None:
        """Events of all that has come, which may be none; None if nothing came in time. Never raises."""
        try:
            if self._first:
                arrivals, self._first = self._first, []
            else:
                arrivals = self._answer.read(timeout_s)
            if not arrivals:
                return None
            events = self._chunks.encoded(arrivals)
            return events if self._answer.num_open else self._ended(events)
        except ClientGone:
            self.is_over = True
            return b""
        except TrivetError as error:
            logger.warning("%s stream ended: %s", self, error)
            return self._failed(error)
        except Exception:  # the HTTP border, behind the point where Flask's own handler could answer
            logger.exception("%s stream failed", self)
            return self._failed(TrivetError("internal error; the server's log has it"))

    def close(self) -> None:
        self._exchange.close()

    def __str__(self) -> str:
        return f"request_id={self._request_id} instance={self._answer.instance_of(0)}"

    def _ended(self, events: bytes) -> bytes:
        """The last events and what follows them, in one piece: each write costs a system call."""
        self.is_over = True
        try:
            last = list(self._chunks.last())
        except TrivetError as error:
            logger.warning("%s stream ended: %s", self, error)
            return events + self._failed(error)
        return b"".join([events, *map(self._chunks.event, last), self._chunks.end])

    def _failed(self, error: TrivetError) -> bytes:
        self.is_over = True
        return self._chunks.failed(error)


def stream_response(exchange: Exchange, chunks: Chunks) -> Response:
    """Closes `exchange` once the client has everything, or has gone, or the request has failed.

    Raises: what ended the answer before its first piece.
    """
    answer = exchange.answer
    latest_s = time.monotonic() + FIRST_PIECE_WAIT_S

    def begin() -> Response:
        try:
            first = answer.read(max(0.0, latest_s - time.monotonic()))
        except BaseException:
            exchange.close()
            raise
        stream = EventStream(exchange, chunks, first)
        if handover := handover_of_request():
            handover.stream = stream
        response = Response(stream, mimetype=chunks.media_type)
        response.headers["Cache-Control"] = "no-cache"
        response.headers["X-Accel-Buffering"] = "no"
        return response

    return when_something_came(answer.mailbox, FIRST_PIECE_WAIT_S, begin, exchange.close)


def _event(value: msgspec.Struct) -> bytes:
    return b"data: " + _encode(value) + b"\n\n"
