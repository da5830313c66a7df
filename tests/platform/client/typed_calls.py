"""What a type checker knows of the library's calls; mypy reads this file (setup.cfg), nobody runs it."""

from __future__ import annotations

from pathlib import Path
from typing import assert_type

from trivet.client import (
    AsyncClient,
    AsyncStream,
    Batch,
    ChatChunk,
    ChatCompletion,
    Client,
    Deployment,
    File,
    Page,
    Response,
    ResponseEvent,
    Stream,
    Version,
)


def sync(client: Client, path: Path) -> None:
    """One answer, a stream, a list, a page, a file; copies are of the same kind."""
    messages = [{"role": "user", "content": "Hello"}]
    assert_type(client.chat.complete("m", messages, temperature=0.5, max_tokens=8), ChatCompletion)
    assert_type(client.chat.stream("m", messages), Stream[ChatChunk])
    assert_type(client.responses.create("m", "Hello"), Response)
    assert_type(client.responses.stream("m", "Hello"), Stream[ResponseEvent])
    assert_type(client.deployments.list(), tuple[Deployment, ...])
    assert_type(client.models.add("/models/m"), Version)
    assert_type(client.files.upload(path), File)
    assert_type(client.files.list(limit=1), Page[File])
    assert_type(client.files.list()[0], File)
    assert_type(client.batches.list().last_id, str | None)
    assert_type(client.files.content("file_1"), bytes)
    assert_type(client.files.read("file_1"), Stream[bytes])
    assert_type(client.files.download("file_1", path), int)
    assert_type(client.with_options(timeout_s=1), Client)
    client.chat.complete("m", messages, temperatur=0.5)  # type: ignore[call-arg]  # there is none
    client.chat.complete("m", messages, temperature="hot")  # type: ignore[arg-type]


async def asynchronous(client: AsyncClient, path: Path) -> None:
    """The same calls, awaited."""
    messages = [{"role": "user", "content": "Hello"}]
    assert_type(await client.chat.complete("m", messages, max_tokens=8), ChatCompletion)
    assert_type(client.chat.stream("m", messages), AsyncStream[ChatChunk])
    async with client.chat.stream("m", messages) as chunks:
        async for chunk in chunks:
            assert_type(chunk.text, str)
    assert_type(await client.batches.get("batch_1"), Batch)
    assert_type(await client.files.list(), Page[File])
    assert_type(await client.files.download("file_1", path), int)
    assert_type(client.with_options(max_retries=0), AsyncClient)
    await client.deployments.scale("m", "two")  # type: ignore[arg-type]  # replicas are a number
