"""One HTTP connection pool to one server, for coroutines of asyncio: `connection.py` with `await`."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import TypeVar

import httpx2

from trivet.client.calls import Call, StreamCall
from trivet.client.retries import Retries
from trivet.client.streams import AsyncStream
from trivet.client.wire import NOT_CONNECTED, Wire

T = TypeVar("T")


class AsyncConnection:
    """Of one event loop. Several may share one pool, each with its own timeout and retries."""

    def __init__(
        self,
        http: httpx2.AsyncClient,
        wire: Wire,
        retries: Retries,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self.http = http
        self.wire = wire
        self.retries = retries
        self._sleep = sleep

    def with_options(self, timeout_s: float | None, max_retries: int | None) -> AsyncConnection:
        """Over the same pool; None: as it is."""
        timeout_s = self.wire.timeout_s if timeout_s is None else timeout_s
        max_retries = self.retries.max_retries if max_retries is None else max_retries
        wire = replace(self.wire, timeout_s=timeout_s)
        retries = replace(self.retries, max_retries=max_retries, longest_wait_s=timeout_s)
        return AsyncConnection(self.http, wire, retries, self._sleep)

    async def send(self, call: Call[T]) -> T:
        """Raises: TrivetError as the server named it; Unavailable where nothing answers."""
        with self.wire.failures():
            response = await self._begin(call)
            async with _closing(response):
                await response.aread()
        return self.wire.answer(call, response)

    def stream(self, call: StreamCall[T]) -> AsyncStream[T]:
        """The answer in pieces, raising what `send` raises, also in the middle."""
        return AsyncStream(self._items(call))

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
            async with _closing(await self._begin(call)) as response:
                if call.item is str:
                    async for text in response.aiter_text():
                        yield text  # type: ignore[misc]  # T is str
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
        num_done = 0
        while True:
            try:
                with self.wire.request(self.http, call) as request:
                    response = await self.http.send(request, stream=True)
            except NOT_CONNECTED:
                wait_s = self.retries.after_no_connection(num_done)
                if wait_s is None:
                    raise
            else:
                if not response.is_error:
                    return response
                async with _closing(response):
                    await response.aread()
                wait_s = self.retries.after_refusal(num_done, response.status_code, response.headers)
                if wait_s is None:
                    raise self.wire.refusal(response)
            await self._sleep(wait_s)
            num_done += 1


@asynccontextmanager
async def _closing(response: httpx2.Response) -> AsyncIterator[httpx2.Response]:
    try:
        yield response
    finally:
        await response.aclose()
