"""One HTTP connection pool to one server, for threads."""

from __future__ import annotations

import time
from collections.abc import Callable, Generator
from contextlib import closing
from dataclasses import replace
from typing import TypeVar

import httpx2

from trivet.client.calls import Call, StreamCall
from trivet.client.retries import Retries
from trivet.client.streams import Stream
from trivet.client.wire import NOT_CONNECTED, Wire

T = TypeVar("T")


class Connection:
    """Thread-safe. Several may share one pool, each with its own timeout and retries."""

    def __init__(
        self, http: httpx2.Client, wire: Wire, retries: Retries, sleep: Callable[[float], None] = time.sleep
    ) -> None:
        self.http = http
        self.wire = wire
        self.retries = retries
        self._sleep = sleep

    def with_options(self, timeout_s: float | None, max_retries: int | None) -> Connection:
        """Over the same pool; None: as it is."""
        timeout_s = self.wire.timeout_s if timeout_s is None else timeout_s
        max_retries = self.retries.max_retries if max_retries is None else max_retries
        wire = replace(self.wire, timeout_s=timeout_s)
        retries = replace(self.retries, max_retries=max_retries, longest_wait_s=timeout_s)
        return Connection(self.http, wire, retries, self._sleep)

    def send(self, call: Call[T]) -> T:
        """Raises: TrivetError as the server named it; Unavailable where nothing answers."""
        with self.wire.failures():
            response = self._begin(call)
            with closing(response):
                response.read()
        return self.wire.answer(call, response)

    def stream(self, call: StreamCall[T]) -> Stream[T]:
        """The answer in pieces, raising what `send` raises, also in the middle."""
        return Stream(self._items(call))

    def answers(self, path: str) -> bool:
        """Whether GET `path` succeeds; False where nothing listens. Raises nothing."""
        try:
            return self.http.get(path, timeout=self.wire.timeout_s).is_success
        except httpx2.TransportError:
            return False

    def close(self) -> None:
        self.http.close()

    def _items(self, call: StreamCall[T]) -> Generator[T, None, None]:
        with self.wire.failures(), closing(self._begin(call)) as response:
            if call.item is str:
                yield from response.iter_text()  # type: ignore[misc]  # T is str
                return
            for event in httpx2.EventSource(response):
                if event.data == "[DONE]":
                    return
                item = self.wire.event(call, event)
                yield item
                if call.is_last is not None and call.is_last(item):
                    return
        raise self.wire.cut(call)

    def _begin(self, call: Call[T] | StreamCall[T]) -> httpx2.Response:
        """The answer's head, when it is no error; tried again where that is safe."""
        num_done = 0
        while True:
            try:
                with self.wire.request(self.http, call) as request:
                    response = self.http.send(request, stream=True)
            except NOT_CONNECTED:
                wait_s = self.retries.after_no_connection(num_done)
                if wait_s is None:
                    raise
            else:
                if not response.is_error:
                    return response
                with closing(response):
                    response.read()
                wait_s = self.retries.after_refusal(num_done, response.status_code, response.headers)
                if wait_s is None:
                    raise self.wire.refusal(response)
            self._sleep(wait_s)
            num_done += 1
