"""Files are brought a piece at a time, and are there when they are whole."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import tracemalloc
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

import httpx2
import pytest

from trivet import errors
from trivet.client import AsyncClient, Client

SIZE_BYTES = 16 << 20
PIECE = bytes(64 << 10)


class Body(httpx2.SyncByteStream, httpx2.AsyncByteStream):
    """So many bytes; then the connection ends in order."""

    def __init__(self, size_bytes: int) -> None:
        self._size_bytes = size_bytes

    def __iter__(self) -> Iterator[bytes]:
        for start in range(0, self._size_bytes, len(PIECE)):
            yield PIECE[: self._size_bytes - start]

    async def __aiter__(self) -> AsyncIterator[bytes]:
        for piece in self:
            yield piece


class Sender(httpx2.BaseTransport, httpx2.AsyncBaseTransport):
    """Says a size and sends another, or fails with a body of that size."""

    def __init__(self, told_bytes: int, sent_bytes: int, status: int = 200) -> None:
        self._told_bytes, self._sent_bytes, self._status = told_bytes, sent_bytes, status

    def handle_request(self, request: httpx2.Request) -> httpx2.Response:
        headers = {"Content-Length": str(self._told_bytes)}
        return httpx2.Response(self._status, headers=headers, stream=Body(self._sent_bytes))

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        return self.handle_request(request)


Fetch = Callable[[Sender, Path], int]


def fetch(sender: Sender, to: Path) -> int:
    with Client("http://trivet.test", "key", transport=sender) as client:
        return client.models.download_file("m:1", "model.safetensors", to)


def fetch_async(sender: Sender, to: Path) -> int:
    async def run() -> int:
        async with AsyncClient("http://trivet.test", "key", transport=sender) as client:
            return await client.files.download("file_1", to)

    return asyncio.run(run())


@pytest.fixture(params=[fetch, fetch_async], ids=["sync", "async"])
def bring(request: pytest.FixtureRequest) -> Fetch:
    made: Fetch = request.param
    return made


def test_memory_holds_a_piece_of_a_download(tmp_path: Path, bring: Fetch) -> None:
    tracemalloc.start()
    try:
        assert bring(Sender(SIZE_BYTES, SIZE_BYTES), tmp_path / "model") == SIZE_BYTES
        _, peak_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak_bytes < SIZE_BYTES / 8
    assert (tmp_path / "model").stat().st_size == SIZE_BYTES


def test_an_empty_file_is_a_file(tmp_path: Path, bring: Fetch) -> None:
    assert bring(Sender(0, 0), tmp_path / "model") == 0
    assert (tmp_path / "model").read_bytes() == b""


def test_a_file_that_is_cut_short_is_no_file_and_leaves_what_was_there(tmp_path: Path, bring: Fetch) -> None:
    """A proxy ends the connection in order."""
    (tmp_path / "model").write_bytes(b"old")
    with pytest.raises(errors.Unavailable, match="has 200000 bytes and 100000 of them came"):
        bring(Sender(200_000, 100_000), tmp_path / "model")
    assert [file.name for file in tmp_path.iterdir()] == ["model"]
    assert (tmp_path / "model").read_bytes() == b"old"


def test_of_the_body_of_an_error_only_the_beginning_is_read(tmp_path: Path, bring: Fetch) -> None:
    tracemalloc.start()
    try:
        with pytest.raises(errors.Unavailable, match="answered 502, not as Trivet does"):
            bring(Sender(SIZE_BYTES, SIZE_BYTES, status=502), tmp_path / "model")
        _, peak_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak_bytes < SIZE_BYTES / 8
    assert not list(tmp_path.iterdir())


FULL = """
import resource, signal, sys
from pathlib import Path
from trivet.client.draft import Draft
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))
draft = Draft(Path(sys.argv[1]))
try:
    with draft.dropped_on_error():
        for _ in range(10):
            draft.write(bytes(30_000))
        draft.keep()
except OSError as error:
    print(error.strerror)
"""


def test_a_disk_that_takes_no_more_keeps_nothing_of_a_download(tmp_path: Path) -> None:
    command = [sys.executable, "-c", FULL, str(tmp_path / "model")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout == "File too large\n", done.stderr
    assert not list(tmp_path.iterdir())


class Rubbish(Sender):
    """Says that its body is compressed, and sends something else."""

    def handle_request(self, request: httpx2.Request) -> httpx2.Response:
        headers = {"Content-Encoding": "gzip"}
        return httpx2.Response(200, headers=headers, stream=Body(self._sent_bytes))


def test_a_body_that_is_not_in_its_encoding_is_a_failure_of_ours(tmp_path: Path, bring: Fetch) -> None:
    with pytest.raises(errors.Unavailable, match="not in the encoding that it names"):
        bring(Rubbish(1000, 1000), tmp_path / "result")
    assert list(tmp_path.iterdir()) == []


def test_an_error_that_dribbles_in_is_told_with_what_there_is_of_it(
    tmp_path: Path, bring: Fetch, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("trivet.client.connection.ERROR_BODY_S", 0.0)
    monkeypatch.setattr("trivet.client.async_connection.ERROR_BODY_S", 0.0)
    sender = Sender(SIZE_BYTES, SIZE_BYTES, status=500)
    monkeypatch.setattr(sys.modules[__name__], "PIECE", b"e")
    with pytest.raises(errors.TrivetError, match=r"not as Trivet does: e$"):
        bring(sender, tmp_path / "result")
