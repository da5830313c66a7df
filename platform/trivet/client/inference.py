"""The calls that models answer: chats and completions, vectors, scores, tokens."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypeAlias, Unpack

from trivet.client.answers import (
    ChatChunk,
    ChatCompletion,
    Completion,
    DetokenizedText,
    Embeddings,
    Message,
    Ranking,
    Scores,
    TokenizerInfo,
    Tokens,
)
from trivet.client.calls import C, Call, Group, StreamCall, ask, call, stream
from trivet.client.fields import (
    ChatFields,
    CompletionFields,
    EmbeddingFields,
    RerankFields,
    ScoringFields,
    TokenizeFields,
)

# A message to the model as OpenAI has it, {"role": "user", "content": "Hello"}, or one that a model made.
ChatMessage: TypeAlias = Mapping[str, object] | Message
# Text or token ids, or several of either.
Prompt: TypeAlias = str | Sequence[int] | Sequence[str] | Sequence[Sequence[int]]


class Chat(Group[C]):
    """`/v1/chat/completions`.

    >>> answer = client.chat.complete("null", [{"role": "user", "content": "Hello"}], max_tokens=8)
    >>> answer.finish_reason, answer.usage.completion_tokens
    ('length', 8)

    With tools the model's message goes back as it is, and the results after it:

    >>> messages = [{"role": "user", "content": "How warm is it in Oslo?"}]
    >>> schema = {"type": "object", "properties": {"city": {"type": "string"}}}
    >>> weather = {"type": "function", "function": {"name": "weather", "parameters": schema}}
    >>> answer = client.chat.complete("null", messages, tools=[weather], max_tokens=8)
    >>> results = [{"role": "tool", "tool_call_id": c.id, "content": "12 C"} for c in answer.tool_calls]
    >>> answer = client.chat.complete("null", [*messages, answer.message, *results], max_tokens=8)

    A stream that is left early ends the request in the engine, too:

    >>> with client.chat.stream("null", messages, max_tokens=100) as chunks:
    ...     for chunk in chunks:
    ...         if chunk.text or chunk.reasoning:
    ...             break
    """

    @call
    def complete(
        self, model: str, messages: Sequence[ChatMessage], **fields: Unpack[ChatFields]
    ) -> Call[ChatCompletion]:
        """The whole answer. Raises: TrivetError."""
        body = {"model": model, "messages": messages, **fields}
        return ask("POST", "/v1/chat/completions", ChatCompletion, body=body)

    @stream
    def stream(
        self, model: str, messages: Sequence[ChatMessage], **fields: Unpack[ChatFields]
    ) -> StreamCall[ChatChunk]:
        """The answer in chunks as they are made; the last one carries the usage.

        Raises: TrivetError, also in the middle of an answer.
        """
        body = {"model": model, "messages": messages, **_streamed(fields)}
        return StreamCall("POST", "/v1/chat/completions", ChatChunk, body)


class Completions(Group[C]):
    """`/v1/completions`: prompts as text or as token ids, without a chat template.

    >>> answer = client.completions.complete("null", ["One", "Two"], max_tokens=4)
    >>> [choice.finish_reason for choice in answer.choices]
    ['length', 'length']
    """

    @call
    def complete(self, model: str, prompt: Prompt, **fields: Unpack[CompletionFields]) -> Call[Completion]:
        """The whole answer. Raises: TrivetError."""
        return ask("POST", "/v1/completions", Completion, body={"model": model, "prompt": prompt, **fields})

    @stream
    def stream(
        self, model: str, prompt: Prompt, **fields: Unpack[CompletionFields]
    ) -> StreamCall[Completion]:
        """The answer in chunks, as `Chat.stream`."""
        body = {"model": model, "prompt": prompt, **_streamed(fields)}
        return StreamCall("POST", "/v1/completions", Completion, body)


class Encoding(Group[C]):
    """What a model reads without writing: `client.embed`, `.score`, `.rerank`, `.tokenize`, `.detokenize`.

    >>> vectors = client.embed("null", ["one", "two"])
    >>> len(vectors.data), vectors.usage.prompt_tokens > 0
    (2, True)
    >>> ranking = client.rerank("null", "What is heavy?", ["Lead.", "Air.", "Tin."], top_n=2)
    >>> len(ranking.results)
    2
    >>> tokens = client.tokenize("null", "The capital of France")
    >>> client.detokenize("null", tokens.tokens)
    'The capital of France'
    """

    @call
    def embed(self, model: str, inputs: Prompt, **fields: Unpack[EmbeddingFields]) -> Call[Embeddings]:
        """A vector for each input, in their order. Raises: TrivetError."""
        return ask("POST", "/v1/embeddings", Embeddings, body={"model": model, "input": inputs, **fields})

    @call
    def score(
        self,
        model: str,
        text_1: str | Sequence[str],
        text_2: str | Sequence[str],
        **fields: Unpack[ScoringFields],
    ) -> Call[Scores]:
        """How well `text_2` answers `text_1`: one with each, or pair by pair. Raises: TrivetError."""
        body = {"model": model, "text_1": text_1, "text_2": text_2, **fields}
        return ask("POST", "/v1/score", Scores, body=body)

    @call
    def rerank(
        self, model: str, query: str, documents: Sequence[str], **fields: Unpack[RerankFields]
    ) -> Call[Ranking]:
        """Documents by how well they answer, the best first. Raises: TrivetError."""
        body = {"model": model, "query": query, "documents": documents, **fields}
        return ask("POST", "/v1/rerank", Ranking, body=body)

    @call
    def tokenize(
        self, model: str, text: str | Sequence[ChatMessage], **fields: Unpack[TokenizeFields]
    ) -> Call[Tokens]:
        """Token ids of a text, or of the whole prompt of a chat's messages. Raises: TrivetError."""
        given = {"prompt": text} if isinstance(text, str) else {"messages": text}
        return ask("POST", "/tokenize", Tokens, body={"model": model, **given, **fields})

    @call
    def detokenize(
        self, model: str, tokens: Sequence[int], *, skip_special_tokens: bool = False
    ) -> Call[str]:
        """The text of token ids. Raises: TrivetError."""
        body = {"model": model, "tokens": tokens, "skip_special_tokens": skip_special_tokens}
        return ask("POST", "/detokenize", DetokenizedText, body=body).then(lambda text: text.prompt)

    @call
    def tokenizer_info(self, model: str | None = None) -> Call[TokenizerInfo]:
        """Its marks and chat template; None: of the one that all deployments have. Raises: TrivetError."""
        return ask("GET", "/tokenizer_info", TokenizerInfo, query={"model": model})


def _streamed(fields: Mapping[str, object]) -> dict[str, object]:
    return {"stream_options": {"include_usage": True}, **fields, "stream": True}
