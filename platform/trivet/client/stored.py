"""The calls of what a site keeps for its users: files, batches and responses."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from operator import attrgetter
from pathlib import Path
from typing import Unpack

from trivet.client.calls import (
    C,
    Call,
    Download,
    Group,
    JsonObject,
    Page,
    StreamCall,
    Upload,
    ask,
    ask_page,
    call,
    download,
    given,
    nothing,
    place,
    stream,
)
from trivet.client.fields import InputFields, ResponseFields
from trivet.client.stored_answers import (
    Batch,
    Deleted,
    File,
    InputItems,
    InputTokens,
    Response,
    ResponseEvent,
)


class Files(Group[C]):
    """`/v1/files`: inputs and results of batches.

    >>> file = client.files.upload(b"{}", "lines.jsonl")
    >>> file.filename, file.bytes, client.files.content(file.id)
    ('lines.jsonl', 2, b'{}')
    >>> b"".join(client.files.read(file.id))
    b'{}'
    >>> page = client.files.list(limit=1)
    >>> page[0].id == page.last_id  # what comes after it, where `page.has_more`
    True
    >>> client.files.delete(file.id)
    """

    @call
    def upload(self, file: Path | bytes, filename: str | None = None, purpose: str = "batch") -> Call[File]:
        """Keep a file of at most 200 MiB. Raises: OSError; RequestTooLarge."""
        name = filename or (file.name if isinstance(file, Path) else "file")
        return Call("POST", "/v1/files", File, upload=Upload(name, file, {"purpose": purpose}))

    @call
    def list(
        self,
        purpose: str | None = None,
        *,
        limit: int | None = None,
        after: str | None = None,
        order: str | None = None,
    ) -> Call[Page[File]]:
        """At most 10,000, newest first or `order="asc"`; `after` is the last id that is known already."""
        query = {"purpose": purpose, "limit": limit, "after": after, "order": order}
        return ask_page("/v1/files", File, query)

    @call
    def get(self, file_id: str) -> Call[File]:
        """Raises: NotFound."""
        return ask("GET", f"/v1/files/{place(file_id)}", File)

    @call
    def content(self, file_id: str) -> Call[bytes]:
        """All of it in memory: `read` and `download` hold a piece at a time. Raises: NotFound."""
        return ask("GET", _content(file_id), bytes)

    @stream
    def read(self, file_id: str) -> StreamCall[bytes]:
        """The content as it comes. Raises: NotFound, and what breaks it off."""
        return StreamCall("GET", _content(file_id), bytes)

    @download
    def download(self, file_id: str, to: str | Path) -> Download:
        """The content into a file, which is there when it is whole. Raises: NotFound; OSError."""
        return Download(StreamCall("GET", _content(file_id), bytes), Path(to))

    @call
    def delete(self, file_id: str) -> Call[None]:
        """Raises: NotFound."""
        return ask("DELETE", f"/v1/files/{place(file_id)}", Deleted).then(nothing)


class Batches(Group[C]):
    """`/v1/batches`: a file of requests, answered at low priority.

    >>> line = b'{"custom_id": "1", "method": "POST", "url": "/v1/completions", '
    >>> line += b'"body": {"model": "null", "prompt": "Hello", "max_tokens": 4}}'
    >>> file = client.files.upload(line, "requests.jsonl")
    >>> batch = client.batches.create(file.id, "/v1/completions")
    >>> while not batch.has_ended:
    ...     batch = client.batches.get(batch.id)
    >>> batch.status, batch.request_counts.completed
    ('completed', 1)
    >>> client.files.download(batch.output_file_id, folder / "results.jsonl") == client.files.get(
    ...     batch.output_file_id
    ... ).bytes
    True
    >>> '"custom_id":"1"' in (folder / "results.jsonl").read_text()
    True
    """

    @call
    def create(
        self,
        input_file_id: str,
        endpoint: str,
        *,
        completion_window: str = "24h",
        metadata: Mapping[str, str] | None = None,
    ) -> Call[Batch]:
        """Begin; `get` tells how far it is. Raises: NotFound; RequestError."""
        body = given(
            input_file_id=input_file_id,
            endpoint=endpoint,
            completion_window=completion_window,
            metadata=metadata,
        )
        return ask("POST", "/v1/batches", Batch, body=body)

    @call
    def list(
        self, *, limit: int | None = None, after: str | None = None, order: str | None = None
    ) -> Call[Page[Batch]]:
        """20 or `limit` (at most 100), newest first or `order="asc"`; `after` is the last known id."""
        return ask_page("/v1/batches", Batch, {"limit": limit, "after": after, "order": order})

    @call
    def get(self, batch_id: str) -> Call[Batch]:
        """Raises: NotFound."""
        return ask("GET", f"/v1/batches/{place(batch_id)}", Batch)

    @call
    def cancel(self, batch_id: str) -> Call[Batch]:
        """End it; what was answered can be had. Raises: NotFound; Conflict where it has ended."""
        return ask("POST", f"/v1/batches/{place(batch_id)}/cancel", Batch)


class Responses(Group[C]):
    """`/v1/responses`; they are kept only where the site's `store_responses` is on.

    >>> client.responses.create("null", "Hello", max_output_tokens=8).status
    'incomplete'
    >>> with client.responses.stream("null", "Hello", max_output_tokens=8) as events:
    ...     *_, last = events
    >>> last.type, last.response.usage.output_tokens
    ('response.incomplete', 8)
    >>> client.responses.count_input_tokens("null", "Hello") == last.response.usage.input_tokens
    True
    """

    @call
    def create(
        self, model: str, prompt: str | Sequence[JsonObject], **fields: Unpack[ResponseFields]
    ) -> Call[Response]:
        """The whole response. Raises: TrivetError."""
        return ask("POST", "/v1/responses", Response, body={"model": model, "input": prompt, **fields})

    @stream
    def stream(
        self, model: str, prompt: str | Sequence[JsonObject], **fields: Unpack[ResponseFields]
    ) -> StreamCall[ResponseEvent]:
        """Events of a response; the last one carries it whole. Raises: TrivetError, also in the middle."""
        body = {"model": model, "input": prompt, **fields, "stream": True}
        return StreamCall("POST", "/v1/responses", ResponseEvent, body, is_last=attrgetter("is_last"))

    @call
    def count_input_tokens(
        self, model: str, prompt: str | Sequence[JsonObject], **fields: Unpack[InputFields]
    ) -> Call[int]:
        """Of a request, without an answer. Raises: TrivetError."""
        body = {"model": model, "input": prompt, **fields}
        counted = ask("POST", "/v1/responses/input_tokens", InputTokens, body=body)
        return counted.then(attrgetter("input_tokens"))

    @call
    def get(self, response_id: str) -> Call[Response]:
        """Raises: NotFound; UnsupportedParameter where none are kept."""
        return ask("GET", f"/v1/responses/{place(response_id)}", Response)

    @call
    def input_items(
        self,
        response_id: str,
        *,
        after: str | None = None,
        limit: int | None = None,
        order: str | None = None,
    ) -> Call[InputItems]:
        """A page of what its request said; `order` is desc or asc. Raises: NotFound; RequestError."""
        query = {"after": after, "limit": limit, "order": order}
        return ask("GET", f"/v1/responses/{place(response_id)}/input_items", InputItems, query=query)

    @call
    def delete(self, response_id: str) -> Call[None]:
        """Raises: NotFound; UnsupportedParameter where none are kept."""
        return ask("DELETE", f"/v1/responses/{place(response_id)}", Deleted).then(nothing)


def _content(file_id: str) -> str:
    return f"/v1/files/{place(file_id)}/content"
