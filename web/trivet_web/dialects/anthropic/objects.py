"""What Anthropic's clients get back, as structs; field names are Anthropic's."""

from __future__ import annotations

from typing import Any, Literal, TypeAlias

import msgspec
from msgspec import UNSET, UnsetType

from trivet_web.error_objects import ErrorObject

_ERRORS = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
}


class TextBlock(msgspec.Struct, frozen=True, tag="text", tag_field="type"):
    """Text of the answer."""

    text: str


class ThinkingBlock(msgspec.Struct, frozen=True, tag="thinking", tag_field="type"):
    """Thinking; nothing here is signed, and none is asked for when it comes back."""

    thinking: str
    signature: str = ""


class ToolUseBlock(msgspec.Struct, frozen=True, tag="tool_use", tag_field="type"):
    """A call."""

    id: str
    name: str
    input: dict[str, Any]


AnswerBlock: TypeAlias = TextBlock | ThinkingBlock | ToolUseBlock


class MessageUsage(msgspec.Struct, frozen=True):
    """Token counts; `input_tokens` are those that no cache had."""

    input_tokens: int
    output_tokens: int
    cache_read_input_tokens: int = 0
    cache_creation_input_tokens: int = 0


class MessageObject(msgspec.Struct, frozen=True, tag="message", tag_field="type"):
    """A whole answer, or as much as there is when a stream begins."""

    id: str
    model: str
    content: list[AnswerBlock]
    stop_reason: str | None
    stop_sequence: str | None
    usage: MessageUsage
    role: Literal["assistant"] = "assistant"


class Delta(msgspec.Struct, frozen=True, kw_only=True):
    """What an event adds to a block, by its type; without one, to the message: why it ended."""

    type: str | UnsetType = UNSET
    text: str | UnsetType = UNSET
    thinking: str | UnsetType = UNSET
    partial_json: str | UnsetType = UNSET
    stop_reason: str | UnsetType = UNSET
    stop_sequence: str | UnsetType | None = UNSET


class MessageEvent(msgspec.Struct, frozen=True):
    """One event of a stream; which fields it has depends on its type."""

    type: str
    message: MessageObject | UnsetType = UNSET
    index: int | UnsetType = UNSET
    content_block: AnswerBlock | UnsetType = UNSET
    delta: Delta | UnsetType = UNSET
    usage: MessageUsage | UnsetType = UNSET


class TokenCount(msgspec.Struct, frozen=True):
    """Of `/v1/messages/count_tokens`."""

    input_tokens: int


class MessageError(msgspec.Struct, frozen=True):
    """What is found under `error`."""

    type: str
    message: str


class MessageErrorBody(msgspec.Struct, frozen=True, tag="error", tag_field="type"):
    """The body of an answer that failed, or an event in a stream that failed."""

    error: MessageError
    request_id: str


def error_of(error: ErrorObject, status: int, request_id: str) -> MessageErrorBody:
    """The same in Anthropic's form; its clients read the kind of error off `type`."""
    kind = _ERRORS.get(status, "invalid_request_error" if status < 500 else "api_error")
    return MessageErrorBody(MessageError(kind, error.message), request_id)
