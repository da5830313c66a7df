"""What OpenAI clients get back, as structs; field names are OpenAI's."""

from __future__ import annotations

from typing import Literal, TypeAlias

import msgspec
from msgspec import UNSET, UnsetType


class PromptTokensDetails(msgspec.Struct, frozen=True):
    """How many tokens of the prompt were found in the prefix cache, and how many were left out of it."""

    cached_tokens: int
    truncated_tokens: int | UnsetType = UNSET


class CompletionTokensDetails(msgspec.Struct, frozen=True):
    """How many tokens of the completions were thinking."""

    reasoning_tokens: int


class Usage(msgspec.Struct, frozen=True):
    """Token counts of one request."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptTokensDetails
    completion_tokens_details: CompletionTokensDetails | UnsetType = UNSET


class PromptLogprob(msgspec.Struct, frozen=True):
    """vLLM's object for a token at a place of the prompt."""

    logprob: float
    rank: int
    decoded_token: str


PromptLogprobs: TypeAlias = list[dict[str, PromptLogprob] | None]  # by token id; None for the first token


# ---- chat ----------------------------------------------------------------------------------------


class TopLogprob(msgspec.Struct, frozen=True):
    """A likely token at one place. `bytes` are exact where `token` holds U+FFFD for half a character."""

    token: str
    logprob: float
    bytes: list[int]


class TokenLogprob(msgspec.Struct, frozen=True):
    """The drawn token and the likeliest ones."""

    token: str
    logprob: float
    bytes: list[int]
    top_logprobs: list[TopLogprob]


class ChatLogprobs(msgspec.Struct, frozen=True):
    """One entry for each token of the message."""

    content: list[TokenLogprob]
    refusal: None = None


class CalledFunction(msgspec.Struct, frozen=True):
    """What the model calls; `arguments` is JSON text, as it wrote it."""

    name: str
    arguments: str


class ToolCallObject(msgspec.Struct, frozen=True):
    """One call."""

    id: str
    function: CalledFunction
    type: Literal["function"] = "function"


class ChatMessage(msgspec.Struct, frozen=True):
    """The model's turn. `reasoning_content` is DeepSeek's name, `reasoning` the newer one of the same."""

    content: str | None
    role: Literal["assistant"] = "assistant"
    refusal: None = None
    reasoning_content: str | UnsetType = UNSET
    reasoning: str | UnsetType = UNSET
    tool_calls: list[ToolCallObject] | UnsetType = UNSET


class ChatChoice(msgspec.Struct, frozen=True):
    """One completion of the conversation."""

    index: int
    message: ChatMessage
    finish_reason: str
    stop_reason: str | int | None
    logprobs: ChatLogprobs | None


class ChatCompletion(msgspec.Struct, frozen=True):
    """A whole answer."""

    id: str
    created: int
    model: str
    choices: list[ChatChoice]
    usage: Usage
    prompt_logprobs: PromptLogprobs | UnsetType = UNSET
    object: Literal["chat.completion"] = "chat.completion"
    system_fingerprint: None = None


class FunctionDelta(msgspec.Struct, frozen=True, omit_defaults=True):
    """What a chunk adds to a call."""

    arguments: str
    name: str | None = None


class ToolCallDelta(msgspec.Struct, frozen=True, omit_defaults=True):
    """The first one of a call has id, type and name."""

    index: int
    function: FunctionDelta
    id: str | None = None
    type: str | None = None


class ChatDelta(msgspec.Struct, frozen=True, omit_defaults=True):
    """What a chunk adds."""

    role: str | None = None
    content: str | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None
    tool_calls: list[ToolCallDelta] | None = None


class ChatChunkChoice(msgspec.Struct, frozen=True):
    """A chunk's part of one choice."""

    index: int
    delta: ChatDelta
    logprobs: ChatLogprobs | None = None
    finish_reason: str | None = None
    stop_reason: str | int | UnsetType = UNSET


class ChatChunk(msgspec.Struct, frozen=True):
    """One event of a streamed answer. `usage` is there if asked for: null, but in the last chunk."""

    id: str
    created: int
    model: str
    choices: list[ChatChunkChoice]
    usage: Usage | UnsetType | None = UNSET
    object: Literal["chat.completion.chunk"] = "chat.completion.chunk"
    system_fingerprint: None = None


# ---- completions ---------------------------------------------------------------------------------


class CompletionLogprobs(msgspec.Struct, frozen=True):
    """Parallel lists, one entry for each token; offsets are characters from the start of the text.

    The first token of an echoed prompt has no logprobs.
    """

    tokens: list[str]
    token_logprobs: list[float | None]
    top_logprobs: list[dict[str, float] | None]
    text_offset: list[int]


class CompletionChoice(msgspec.Struct, frozen=True):
    """One completion, whole or a chunk of it."""

    index: int
    text: str
    logprobs: CompletionLogprobs | None = None
    finish_reason: str | None = None
    stop_reason: str | int | UnsetType = UNSET
    prompt_logprobs: PromptLogprobs | UnsetType = UNSET


class Completion(msgspec.Struct, frozen=True):
    """A whole answer, or one event of a streamed one."""

    id: str
    created: int
    model: str
    choices: list[CompletionChoice]
    usage: Usage | UnsetType | None = UNSET
    object: Literal["text_completion"] = "text_completion"
    system_fingerprint: None = None
