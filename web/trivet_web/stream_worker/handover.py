"""How a view leaves its request to the worker instead of holding a thread while an engine computes.

Under the stream worker the WSGI environment holds a `Handover`. A view that has sent its request to an engine
may return through `when_something_came`: its thread is free at once, and the rest of the view runs, in the
context of the same request, when there is something to answer. Where there is no `Handover` (another worker,
a test client) the rest runs right away and waits by itself: the answer is the same.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from flask import Response, copy_current_request_context, current_app, request

from trivet_web.engines.mailbox import Mailbox

HANDOVER = "trivet.handover"  # in the environment


class ByteStream(Protocol):
    """The body of an answer that is made from what comes into a mailbox."""

    mailbox: Mailbox
    ping: bytes  # a sign of life, for a stream of which nothing comes

    @property
    def is_over(self) -> bool:
        """Whether everything has been taken."""
        ...

    @property
    def has_more(self) -> bool:
        """Whether `take` would not wait."""
        ...

    def take(self, timeout_s: float) -> bytes | None:
        """What has come, as bytes; None if nothing came in time. Never raises."""
        ...

    def close(self) -> None:
        """Release everything, over or not."""
        ...

    def __str__(self) -> str:
        """Its names in the log."""
        ...


class Gatherer(Protocol):
    """Keeps what comes of a whole answer until all is there. Never raises; called by the pump's thread."""

    @property
    def kept_bytes(self) -> int:
        """About what it holds."""
        ...

    def take_all(self) -> bool:
        """Take what has come, and say whether it is over."""
        ...

    def give_up(self) -> None:
        """End the answer: all of them together keep too much."""
        ...


@dataclass(frozen=True, slots=True)
class Parked:
    """A request of which nothing has been answered."""

    mailbox: Mailbox
    until_s: float  # CLOCK_MONOTONIC: resume then, too
    resume: Callable[[], Response]  # the rest of the view, errors made into answers; may wait
    close: Callable[[], None]  # instead, when the client has gone
    gatherer: Gatherer | None = None


@dataclass(slots=True)
class Handover:
    """What a view has left to the worker, in place of the body of its response."""

    parked: Parked | None = None
    stream: ByteStream | None = None


def handover_of_request() -> Handover | None:
    """None where this server cannot take anything over."""
    handover: Handover | None = request.environ.get(HANDOVER)
    return handover


def when_something_came(
    mailbox: Mailbox, wait_s: float, rest: Callable[[], Response], close: Callable[[], None]
) -> Response:
    """The answer of `rest`, which is called when `mailbox` holds something, or after `wait_s` without.

    Args:
        close: called instead if the client hangs up meanwhile.
    """
    if handover_of_request() is None:
        return rest()
    return park(mailbox, time.monotonic() + wait_s, rest, close)


def park(
    mailbox: Mailbox,
    until_s: float,
    rest: Callable[[], Response],
    close: Callable[[], None],
    gatherer: Gatherer | None = None,
) -> Response:
    """Leave a request to the worker, which has offered it: a stand-in for the answer of `rest`.

    Args:
        until_s: CLOCK_MONOTONIC, the latest moment to go on.
        gatherer: takes what has come, until it says that all is there; without it the first piece is enough.
            Where reading may wait, `rest` is called for it, and may park the request again.
    """
    handover = handover_of_request()
    assert handover is not None

    @copy_current_request_context
    def resume() -> Response:
        app = current_app._get_current_object()  # type: ignore[attr-defined]  # of the proxy
        try:
            answer = rest()
        except Exception as error:  # the HTTP border: what Flask does around a view
            answer = app.handle_user_exception(error)
        response: Response = app.finalize_request(answer)
        return response

    handover.parked = Parked(mailbox, until_s, resume, close, gatherer)
    return Response()  # in its place; nobody sees it
