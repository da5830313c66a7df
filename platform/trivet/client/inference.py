"""`client.chat` and `client.completions`: OpenAI's requests, whole or streamed."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TypeAlias

from trivet.client.connection import Connection
from trivet.client.results import ChatChunk, ChatCompletion, Completion

# A message to the model, as OpenAI has it: {"role": "user", "content": "Hello"}.
ChatMessage: TypeAlias = Mapping[str, object]


class Chat:
    """`/v1/chat/completions`. Further fields (temperature, max_tokens, seed ...) go by keyword."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def complete(self, model: str, messages: Sequence[ChatMessage], **fields: object) -> ChatCompletion:
        """The whole answer. Raises: TrivetError."""
        body = {"model": model, "messages": messages, **fields}
        return self._connection.request("POST", "/v1/chat/completions", ChatCompletion, body=body)

    def stream(self, model: str, messages: Sequence[ChatMessage], **fields: object) -> Iterator[ChatChunk]:
        """The answer in chunks as they are made; the last one carries the usage.

        Close the iterator to abort. Raises: TrivetError, also in the middle of an answer.
        """
        body = {"model": model, "messages": messages, **_streamed(fields)}
        return self._connection.events("/v1/chat/completions", ChatChunk, body)


class Completions:
    """`/v1/completions`: a prompt as text or as token ids, without a chat template."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def complete(self, model: str, prompt: str | Sequence[int], **fields: object) -> Completion:
        """The whole answer. Raises: TrivetError."""
        body = {"model": model, "prompt": prompt, **fields}
        return self._connection.request("POST", "/v1/completions", Completion, body=body)

    def stream(self, model: str, prompt: str | Sequence[int], **fields: object) -> Iterator[Completion]:
        """The answer in chunks, as `Chat.stream`."""
        body = {"model": model, "prompt": prompt, **_streamed(fields)}
        return self._connection.events("/v1/completions", Completion, body)


def _streamed(fields: dict[str, object]) -> dict[str, object]:
    return {"stream_options": {"include_usage": True}, **fields, "stream": True}
