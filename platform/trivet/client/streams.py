"""An answer as it comes: an iterator that can be closed, which aborts what the server is still making."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Generator, Iterator
from typing import Generic, Self, TypeVar

T = TypeVar("T")


class Stream(Iterator[T], Generic[T]):
    """Pieces in order. The request is sent when the first one is asked for.

    Leaving a `with` block early, or `close`, closes the connection, and the engine stops at its next step.
    """

    def __init__(self, items: Generator[T, None, None]) -> None:
        self._items = items

    def __next__(self) -> T:
        return next(self._items)

    def close(self) -> None:
        """Abort; nothing happens where it is over."""
        self._items.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


class AsyncStream(AsyncIterator[T], Generic[T]):
    """As `Stream`, for `async for`, in an `async with` block where it may be left early."""

    def __init__(self, items: AsyncGenerator[T, None]) -> None:
        self._items = items

    async def __anext__(self) -> T:
        return await anext(self._items)

    async def close(self) -> None:
        """Abort; nothing happens where it is over."""
        await self._items.aclose()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.close()
