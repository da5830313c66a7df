"""One HTTP connection pool to one server, for coroutines of asyncio: `connection.py` with `await`."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterable
from contextlib import aclosing
from typing import TypeVar, cast

import httpx2

from trivet.client.calls import Call, Download, StreamCall
from trivet.client.carrier import ERROR_BODY_S, MAX_ERROR_BYTES, Attempts, Carrier
from trivet.client.draft import Draft
from trivet.client.retries import Retries
from trivet.client.streams import AsyncStream
from trivet.client.wire import NOT_CONNECTED, Wire

T = TypeVar("T")


class AsyncConnection(Carrier[httpx2.AsyncClient]):
    """Of one event loop."""

    def __init__(
        self,
        http: httpx2.AsyncClient,
        wire: Wire,
        retries: Retries,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        super().__init__(http, wire, retries, sleep)

    async def send(self, call: Call[T]) -> T:
        """Raises: TrivetError as the server named it; Unavailable where nothing answers."""
        with self.wire.failures():
            response = await self._begin(call)
            async with aclosing(response):
                await response.aread()
        return self.wire.answer(call, response)

    def stream(self, call: StreamCall[T]) -> AsyncStream[T]:
        """The answer in pieces, raising what `send` raises, also in the middle."""
        return AsyncStream(self._items(call))

    async def download(self, call: Download) -> int:
        """Bytes that are in the file now; a thread writes them. Raises: as `send`; OSError."""
        draft = Draft(call.place)
        with draft.dropped_on_error():
            async with self.stream(call.source) as pieces:
                async for piece in pieces:
                    await asyncio.to_thread(draft.write, piece)
                return await asyncio.to_thread(draft.keep)

    async def answers(self, path: str) -> bool:
        """Whether GET `path` succeeds; False where nothing listens. Raises nothing."""
        try:
            response = await self.http.get(path, timeout=self.wire.timeout_s)
        except httpx2.TransportError:
            return False
        return response.is_success

    async def close(self) -> None:
        await self.http.aclose()

    async def _items(self, call: StreamCall[T]) -> AsyncGenerator[T, None]:
        with self.wire.failures():
            async with aclosing(await self._begin(call)) as response:
                if call.item is str:
                    async for text in response.aiter_text():
                        yield text  # type: ignore[misc]  # T is str
                    return
                if call.item is bytes:
                    async for piece in response.aiter_bytes():
                        yield piece  # type: ignore[misc]  # T is bytes
                    self.wire.check_length(call, response)
                    return
                async for event in httpx2.EventSource(response):
                    if event.data == "[DONE]":
                        return
                    item = self.wire.event(call, event)
                    yield item
                    if call.is_last is not None and call.is_last(item):
                        return
        raise self.wire.cut(call)

    async def _begin(self, call: Call[T] | StreamCall[T]) -> httpx2.Response:
        """The answer's head, when it is no error; tried again where that is safe."""
        attempts = Attempts(self.wire, self.retries)
        while True:
            try:
                with self.wire.request(self.http, call) as request:
                    if isinstance(call, Call) and call.upload is not None:
                        request.stream = _ReadByThread(cast("Iterable[bytes]", request.stream))
                    response = await self.http.send(request, stream=True)
            except NOT_CONNECTED as error:
                wait_s = attempts.after_no_connection(error)
            else:
                if not response.is_error:
                    return response
                wait_s = attempts.after_refusal(response, await _beginning(response))
            await self._sleep(wait_s)


async def _beginning(response: httpx2.Response) -> bytes:
    """Of the body of an error; closes it."""
    body, latest_s = b"", time.monotonic() + ERROR_BODY_S
    async with aclosing(response):
        async for piece in response.aiter_bytes():
            body += piece
            if len(body) >= MAX_ERROR_BYTES or time.monotonic() >= latest_s:
                break
    return body[:MAX_ERROR_BYTES]


class _ReadByThread(httpx2.AsyncByteStream):
    """A form whose file may lie on a slow disk: the event loop must not wait for it."""

    def __init__(self, form: Iterable[bytes]) -> None:
        self._form = form

    async def __aiter__(self) -> AsyncIterator[bytes]:
        pieces = iter(self._form)
        while (piece := await asyncio.to_thread(next, pieces, None)) is not None:
            yield piece
