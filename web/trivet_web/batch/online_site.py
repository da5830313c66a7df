"""The API for the lines of a batch, in the web process that serves it: by the same code, at low priority."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import suppress

import msgspec
from flask import Flask

from trivet.errors import DeadlinePassed, EngineLost, Overloaded, RequestError, TrivetError, Unavailable
from trivet_web.accounts.principal import PRINCIPAL, Principal
from trivet_web.answers.request_log import RequestEnded
from trivet_web.batch.forms import Answered, BatchForm, Request, read_answer
from trivet_web.batch.input_file import InputLine
from trivet_web.engines.mailbox import ClientGone
from trivet_web.inner_request import INNER, InnerRequest

LOWEST_PRIORITY = 9


_FINAL = (DeadlinePassed.code, RequestEnded.code)  # of status 503, and not of the site's state


class NotAnswered(TrivetError):
    """There was no room or no engine; the same request may succeed later."""


class EngineEndedUnder(NotAnswered):
    """Each engine that took it ended; it may be the reason."""

    def __init__(self, answered: Answered) -> None:
        super().__init__(f"status {answered.status}")
        self.answered = answered


class OnlineSite:
    """Thread-safe."""

    def __init__(self, app: Flask, principal: Callable[[], Principal]) -> None:
        """Args: principal: for whom each line is asked, looked up anew for each."""
        self._app = app
        self._principal = principal
        self._under_way: set[InnerRequest] = set()
        self._lock = threading.Lock()

    def answer(self, request: Request) -> Answered:
        """Raises: NotAnswered, also where `end_all` ended it; EngineEndedUnder."""
        inner = InnerRequest()
        with self._lock:
            self._under_way.add(inner)
        try:
            answered = self._post(request, inner)
        except Unavailable as error:  # the registry, which knows the principal
            raise NotAnswered(error.message) from error
        finally:
            with self._lock:
                self._under_way.discard(inner)
        if _is_passing(answered):
            told = read_answer(answered).error
            if told is not None and told.code == EngineLost.code:
                raise EngineEndedUnder(answered)
            raise NotAnswered(f"status {answered.status}")
        return answered

    def end_all(self) -> None:
        """Those under way end soon."""
        with self._lock:
            under_way = list(self._under_way)
        for inner in under_way:
            inner.end()

    def _post(self, request: Request, inner: InnerRequest) -> Answered:
        client = self._app.test_client(use_cookies=False)
        environ = {PRINCIPAL: self._principal(), INNER: inner}
        response = client.post(
            request.url, data=request.body, content_type="application/json", environ_overrides=environ
        )
        return Answered(response.status_code, response.headers["X-Request-ID"], response.data)


def _is_passing(answered: Answered) -> bool:
    """Whether the same request may succeed later."""
    if answered.status in (Overloaded.status, ClientGone.status):
        return True
    error = read_answer(answered).error
    return answered.status == Unavailable.status and (error is None or error.code not in _FINAL)


class EndpointForm(BatchForm):
    """Lines of one endpoint, each with its own model."""

    def __init__(self, endpoint: str) -> None:
        super().__init__("", {})
        self._endpoint = endpoint

    def request(self, line: InputLine) -> Request:
        """As `Form`; whatever priority it asks for, it goes behind those who wait for their answers."""
        request = super().request(line)
        if request.url != self._endpoint:
            raise RequestError(
                f"url is {request.url!r} and the batch's endpoint {self._endpoint!r}", param="url"
            )
        body = request.body
        with suppress(msgspec.MsgspecError):
            fields = msgspec.json.decode(body, type=dict[str, msgspec.Raw])
            fields["priority"] = _low(fields.get("priority"))
            body = msgspec.json.encode(fields)
        return Request(request.url, body)


def _low(given: msgspec.Raw | None) -> msgspec.Raw:
    """What is no number stays, for the API to refuse."""
    lowest = msgspec.Raw(b"%d" % LOWEST_PRIORITY)
    if given is None:
        return lowest
    try:
        priority = msgspec.json.decode(given, type=float | None)
    except msgspec.MsgspecError:
        return given
    return lowest if priority is None or priority < LOWEST_PRIORITY else given
