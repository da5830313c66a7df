"""Messages of a chat request, checked and in the form that chat templates read."""

from __future__ import annotations

from typing import Any

import msgspec

from trivet.errors import RequestError, UnsupportedParameter

ROLES = ("system", "developer", "user", "assistant", "tool", "function")
MAX_MESSAGES = 10_000
# Templates know the second ones; OpenAI's names were changed once.
_ROLES = {"developer": "system", "function": "tool"}


class ContentPart(msgspec.Struct, frozen=True):
    """A piece of a message; only text is carried out, and what the model refused in words."""

    type: str
    text: str | None = None
    refusal: str | None = None


class FunctionCall(msgspec.Struct, frozen=True):
    """A function that the model called in an earlier turn; `arguments` is JSON text, or what it says."""

    name: str
    arguments: str | dict[str, Any] | None = ""


class ToolCall(msgspec.Struct, frozen=True):
    """A call of an earlier turn."""

    function: FunctionCall
    id: str | None = None
    type: str = "function"


class Message(msgspec.Struct, frozen=True, kw_only=True):
    """One turn."""

    role: str
    content: str | list[ContentPart] | None = None
    name: str | None = None
    tool_calls: list[ToolCall] | None = None
    function_call: FunctionCall | None = None  # what tool_calls were before there could be several
    tool_call_id: str | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None  # the same by its newer name
    refusal: str | None = None  # in place of a content
    audio: dict[str, Any] | None = None  # of an earlier answer


def for_template(messages: list[Message]) -> list[dict[str, Any]]:
    """Plain dicts, which the template's own preparation (text/chat_messages.py) takes further.

    Raises: RequestError naming the message that is wrong; UnsupportedParameter for images and the like.
    """
    if not messages:
        raise RequestError("messages is empty; send at least one message", param="messages")
    if len(messages) > MAX_MESSAGES:
        raise RequestError(f"messages has {len(messages)}; at most {MAX_MESSAGES} are read", param="messages")
    for index, message in enumerate(messages):
        _check(message, f"messages[{index}]")
    return [_plain(message) for message in messages]


def _check(message: Message, path: str) -> None:
    if message.role not in ROLES:
        raise RequestError(
            f"{path}.role is {message.role!r}; it must be one of {', '.join(ROLES)}", param=f"{path}.role"
        )
    if message.audio is not None:
        raise UnsupportedParameter(
            f"{path}.audio is given; this version reads text only: leave it out", param=f"{path}.audio"
        )
    if not isinstance(message.content, list):
        return
    for index, part in enumerate(message.content):
        place = f"{path}.content[{index}]"
        if part.type == "refusal" and part.refusal is not None:
            continue
        if part.type != "text":
            raise UnsupportedParameter(
                f"{place}.type is {part.type!r}; this version reads text parts only", param=f"{place}.type"
            )
        if part.text is None:
            raise RequestError(f"{place}.text is missing; it is required", param=f"{place}.text")


def _plain(message: Message) -> dict[str, Any]:
    plain: dict[str, Any] = msgspec.to_builtins(message)
    plain.pop("audio")
    refusal = plain.pop("refusal")
    if plain["content"] is None:
        plain["content"] = refusal
    elif isinstance(message.content, list):
        texts = [part.refusal if part.type == "refusal" else part.text for part in message.content]
        plain["content"] = [{"type": "text", "text": text} for text in texts]
    if plain["reasoning_content"] is None:
        plain["reasoning_content"] = plain["reasoning"]
    if (call := plain.pop("function_call")) is not None and not message.tool_calls:
        plain["tool_calls"] = [{"type": "function", "id": None, "function": call}]
    for called in plain["tool_calls"] or []:
        function = called["function"]
        if not isinstance(function["arguments"], str):
            function["arguments"] = msgspec.json.encode(function["arguments"] or {}).decode()
    plain["role"] = _ROLES.get(message.role, message.role)
    return plain
