"""A file is read while it is sent, and anew at each attempt."""

from __future__ import annotations

import asyncio
import tracemalloc
from collections.abc import AsyncIterable, Iterable
from pathlib import Path

import httpx2
import pytest

from trivet.client.async_connection import AsyncConnection
from trivet.client.connection import Connection
from trivet.client.retries import Retries
from trivet.client.stored import Files
from trivet.client.wire import Wire

SIZE_BYTES = 48 << 20
WIRE = Wire("http://trivet.test", 5.0)
FILE = b'{"id": "file_1", "filename": "lines.jsonl"}'


class Receiver(httpx2.BaseTransport, httpx2.AsyncBaseTransport):
    """Counts what it is sent, piece by piece; refuses the first attempt."""

    def __init__(self) -> None:
        self.sizes_bytes: list[int] = []

    def handle_request(self, request: httpx2.Request) -> httpx2.Response:
        assert isinstance(request.stream, Iterable)
        self.sizes_bytes.append(sum(map(len, request.stream)))
        return self._answer()

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        assert isinstance(request.stream, AsyncIterable)
        self.sizes_bytes.append(sum([len(piece) async for piece in request.stream]))
        return self._answer()

    def _answer(self) -> httpx2.Response:
        if len(self.sizes_bytes) == 1:
            later = {"error": {"message": "later", "code": "overloaded"}}
            return httpx2.Response(429, headers={"Retry-After": "1"}, json=later)
        return httpx2.Response(200, content=FILE)


@pytest.mark.parametrize("is_async", [False, True])
def test_memory_holds_a_piece_of_the_file_only(tmp_path: Path, is_async: bool) -> None:
    file, receiver = tmp_path / "lines.jsonl", Receiver()
    with file.open("wb") as sparse:
        sparse.truncate(SIZE_BYTES)
    retries = Retries(1, 5.0)
    tracemalloc.start()
    try:
        if is_async:
            sent = asyncio.run(_send(receiver, retries, file))
        else:
            with httpx2.Client(transport=receiver, base_url=WIRE.base_url) as http:
                sent = Files(Connection(http, WIRE, retries, lambda wait_s: None)).upload(file).filename
        _, peak_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert sent == "lines.jsonl"
    first, second = receiver.sizes_bytes
    assert first == second > SIZE_BYTES
    assert peak_bytes < SIZE_BYTES / 8


async def _send(receiver: Receiver, retries: Retries, file: Path) -> str:
    async def no_wait(wait_s: float) -> None:
        pass

    async with httpx2.AsyncClient(transport=receiver, base_url=WIRE.base_url) as http:
        return (await Files(AsyncConnection(http, WIRE, retries, no_wait)).upload(file)).filename


def test_a_file_that_is_not_there_is_an_os_error() -> None:
    with (
        httpx2.Client(transport=Receiver(), base_url=WIRE.base_url) as http,
        pytest.raises(FileNotFoundError),
    ):
        Files(Connection(http, WIRE, Retries(0, 5.0))).upload(Path("/nowhere/lines.jsonl"))
