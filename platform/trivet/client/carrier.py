"""What both kinds of connection are but for who waits: an HTTP client, its wire and when it tries again."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, Generic, Self, TypeVar

import httpx2

from trivet.client.retries import Retries
from trivet.client.wire import Wire
from trivet.errors import TrivetError

H = TypeVar("H", bound="httpx2.Client | httpx2.AsyncClient")
MAX_ERROR_BYTES = 64 << 10  # that are read of the body of an error, whoever sent it
ERROR_BODY_S = 10.0  # no piece is waited for beyond it: what there is of the error is told


class Carrier(Generic[H]):
    """Several may share one pool, each with its own timeout and retries."""

    def __init__(self, http: H, wire: Wire, retries: Retries, sleep: Callable[[float], Any]) -> None:
        """Args: sleep: seconds until the next attempt; what it returns is awaited by who awaits."""
        self.http = http
        self.wire = wire
        self.retries = retries
        self._sleep = sleep

    def with_options(self, timeout_s: float | None, max_retries: int | None) -> Self:
        """Over the same pool; None: as it is."""
        timeout_s = self.wire.timeout_s if timeout_s is None else timeout_s
        max_retries = self.retries.max_retries if max_retries is None else max_retries
        wire = replace(self.wire, timeout_s=timeout_s)
        retries = replace(self.retries, max_retries=max_retries, longest_wait_s=timeout_s)
        return type(self)(self.http, wire, retries, self._sleep)


class Attempts:
    """Of one request."""

    def __init__(self, wire: Wire, retries: Retries) -> None:
        self._wire = wire
        self._retries = retries
        self._num_done = 0

    def after_no_connection(self, error: httpx2.TransportError) -> float:
        """Seconds until the next attempt. Raises: `error` where there is none."""
        return self._next(self._retries.after_no_connection(self._num_done), error)

    def after_refusal(self, response: httpx2.Response, body: bytes) -> float:
        """Seconds until the next attempt. Raises: what the answer says, where there is none."""
        wait_s = self._retries.after_refusal(self._num_done, response.status_code, response.headers)
        return self._next(wait_s, self._wire.refusal(response, body))

    def _next(self, wait_s: float | None, error: httpx2.TransportError | TrivetError) -> float:
        if wait_s is None:
            raise error
        self._num_done += 1
        return wait_s
