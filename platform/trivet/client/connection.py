"""One HTTP connection pool to one server, for threads."""

from __future__ import annotations

import time
from collections.abc import Callable, Generator
from contextlib import closing
from typing import TypeVar

import httpx2

from trivet.client.calls import Call, Download, StreamCall
from trivet.client.carrier import ERROR_BODY_S, MAX_ERROR_BYTES, Attempts, Carrier
from trivet.client.draft import Draft
from trivet.client.retries import Retries
from trivet.client.streams import Stream
from trivet.client.wire import NOT_CONNECTED, Wire

T = TypeVar("T")


class Connection(Carrier[httpx2.Client]):
    """Thread-safe."""

    def __init__(
        self, http: httpx2.Client, wire: Wire, retries: Retries, sleep: Callable[[float], None] = time.sleep
    ) -> None:
        super().__init__(http, wire, retries, sleep)

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

    def download(self, call: Download) -> int:
        """Bytes that are in the file now. Raises: as `send`; OSError."""
        draft = Draft(call.place)
        with draft.dropped_on_error(), self.stream(call.source) as pieces:
            for piece in pieces:
                draft.write(piece)
            return draft.keep()

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
            if call.item is bytes:
                yield from response.iter_bytes()  # type: ignore[misc]  # T is bytes
                self.wire.check_length(call, response)
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
        attempts = Attempts(self.wire, self.retries)
        while True:
            try:
                with self.wire.request(self.http, call) as request:
                    response = self.http.send(request, stream=True)
            except NOT_CONNECTED as error:
                wait_s = attempts.after_no_connection(error)
            else:
                if not response.is_error:
                    return response
                wait_s = attempts.after_refusal(response, _beginning(response))
            self._sleep(wait_s)


def _beginning(response: httpx2.Response) -> bytes:
    """Of the body of an error; closes it."""
    body, latest_s = b"", time.monotonic() + ERROR_BODY_S
    with closing(response):
        for piece in response.iter_bytes():
            body += piece
            if len(body) >= MAX_ERROR_BYTES or time.monotonic() >= latest_s:
                break
    return body[:MAX_ERROR_BYTES]
