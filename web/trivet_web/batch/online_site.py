"""The API for the lines of a batch, in the web process that serves it: by the same code, at low priority."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress

import msgspec
from flask import Flask

from trivet.errors import DeadlinePassed, Overloaded, RequestError, TrivetError, Unavailable
from trivet_web.accounts.principal import PRINCIPAL, Principal
from trivet_web.batch.forms import Answered, BatchForm, Request, read_answer
from trivet_web.batch.input_file import InputLine

LOWEST_PRIORITY = 9
RETRY_S = 1.0
STEP_S = 0.1


class BatchStopped(TrivetError):
    """The batch is not to go on now; what was answered stands."""


class OnlineSite:
    """Thread-safe."""

    def __init__(
        self, app: Flask, principal: Callable[[], Principal], is_stopped: Callable[[], bool]
    ) -> None:
        """Args: principal: for whom each line is asked, looked up anew for each."""
        self._app = app
        self._principal = principal
        self._is_stopped = is_stopped

    def answer(self, request: Request) -> Answered:
        """Tried again while there is no room or no engine: a batch has time. Raises: BatchStopped."""
        while True:
            self._check()
            client = self._app.test_client(use_cookies=False)
            response = client.post(
                request.url,
                data=request.body,
                content_type="application/json",
                environ_overrides={PRINCIPAL: self._principal()},
            )
            answered = Answered(response.status_code, response.headers["X-Request-ID"], response.data)
            if not _is_passing(answered):
                return answered
            until_s = time.monotonic() + RETRY_S
            while time.monotonic() < until_s:
                self._check()
                time.sleep(STEP_S)

    def end_all(self) -> None:
        """Requests under way end by themselves; none is begun."""

    def _check(self) -> None:
        if self._is_stopped():
            raise BatchStopped("the batch was stopped")


def _is_passing(answered: Answered) -> bool:
    """Whether the same request may succeed later."""
    if answered.status == Overloaded.status:
        return True
    error = read_answer(answered).error
    return answered.status == Unavailable.status and (error is None or error.code != DeadlinePassed.code)


class EndpointForm(BatchForm):
    """Lines of one endpoint, each with its own model."""

    def __init__(self, endpoint: str) -> None:
        super().__init__("", {})
        self._endpoint = endpoint

    def request(self, line: InputLine) -> Request:
        """As `Form`."""
        request = super().request(line)
        if request.url != self._endpoint:
            raise RequestError(
                f"url is {request.url!r} and the batch's endpoint {self._endpoint!r}", param="url"
            )
        body = request.body
        with suppress(msgspec.MsgspecError):
            fields = msgspec.json.decode(body, type=dict[str, msgspec.Raw])
            fields.setdefault("priority", msgspec.Raw(b"%d" % LOWEST_PRIORITY))
            body = msgspec.json.encode(fields)
        return Request(request.url, body)
