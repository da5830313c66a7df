"""The input of `/v1/responses` as the messages of a chat."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from trivet.errors import RequestError, UnsupportedParameter
from trivet_web.api.conversation import ROLES, FunctionCall, Message, ToolCall
from trivet_web.api.responses_objects import (
    FunctionCallItem,
    FunctionResultItem,
    InputText,
    OutputText,
    ReasoningItem,
    ReasoningText,
    StoredItem,
    StoredMessage,
)
from trivet_web.stored_objects import new_id

_TEXT_PARTS = ("input_text", "output_text", "text", "summary_text", "reasoning_text")


class InputPart(msgspec.Struct, frozen=True, kw_only=True):
    """A piece of an item's content."""

    type: str
    text: str | None = None
    refusal: str | None = None


class InputItem(msgspec.Struct, frozen=True, kw_only=True):
    """A message, a call, its result, or thinking; which fields it has depends on its type."""

    type: str | None = None  # None: a message
    role: str | None = None
    content: str | list[InputPart] | None = None
    call_id: str | None = None
    name: str | None = None
    arguments: str | None = None
    output: str | list[InputPart] | None = None
    summary: list[InputPart] | None = None


def messages_of(items: str | Sequence[InputItem], path: str = "input") -> list[Message]:
    """In order; what one turn of the model wrote (thinking, text, calls) is one message.

    Raises: RequestError, UnsupportedParameter naming the item.
    """
    if isinstance(items, str):
        return [Message(role="user", content=items)]
    turns = _Turns()
    for index, item in enumerate(items):
        _add(turns, item, f"{path}[{index}]")
    return turns.finish()


def stored_items(items: str | Sequence[InputItem]) -> list[StoredItem]:
    """Of what `messages_of` has read: as OpenAI lists them, each with an id."""
    if isinstance(items, str):
        return [StoredMessage(new_id("msg"), "user", [InputText(items)])]
    return [_stored(item) for item in items]


def _stored(item: InputItem) -> StoredItem:
    if item.type == "function_call":
        return FunctionCallItem(new_id("fc"), item.call_id or "", item.name or "", item.arguments or "")
    if item.type == "function_call_output":
        return FunctionResultItem(new_id("fco"), item.call_id or "", _text(item.output, "output"))
    if item.type == "reasoning":
        return ReasoningItem(new_id("rs"), [ReasoningText(_text(item.content or item.summary, "content"))])
    text, role = _text(item.content, "content"), item.role or "user"
    part = OutputText(text) if role == "assistant" else InputText(text)
    return StoredMessage(new_id("msg"), role, [part])


class _Turns:
    def __init__(self) -> None:
        self._messages: list[Message] = []
        self._open: dict[str, Any] = {}  # of the model's turn that is being put together

    def add(self, message: Message) -> None:
        self._close()
        self._messages.append(message)

    def think(self, text: str) -> None:
        if self._open.get("content") or self._open.get("tool_calls"):
            self._close()
        self._open["reasoning_content"] = self._open.get("reasoning_content", "") + text

    def say(self, text: str) -> None:
        if self._open.get("tool_calls"):
            self._close()
        self._open["content"] = self._open.get("content", "") + text

    def call(self, call: ToolCall) -> None:
        self._open.setdefault("tool_calls", []).append(call)

    def finish(self) -> list[Message]:
        self._close()
        return self._messages

    def _close(self) -> None:
        if self._open:
            self._messages.append(Message(role="assistant", **self._open))
            self._open = {}


def _add(turns: _Turns, item: InputItem, path: str) -> None:
    kind = item.type or "message"
    if kind == "message":
        role = _given(item.role, f"{path}.role")
        if role not in ROLES:
            raise RequestError(
                f"{path}.role is {role!r}; it must be one of {', '.join(ROLES)}", param=f"{path}.role"
            )
        text = _text(item.content, f"{path}.content")
        turns.say(text) if role == "assistant" else turns.add(Message(role=role, content=text))
    elif kind == "function_call":
        function = FunctionCall(_given(item.name, f"{path}.name"), item.arguments or "")
        turns.call(ToolCall(function, _given(item.call_id, f"{path}.call_id")))
    elif kind == "function_call_output":
        call_id = _given(item.call_id, f"{path}.call_id")
        text = _text(item.output, f"{path}.output")
        turns.add(Message(role="tool", tool_call_id=call_id, content=text))
    elif kind == "reasoning":
        turns.think(_text(item.content or item.summary, f"{path}.content"))
    else:
        raise UnsupportedParameter(
            f"{path}.type is {kind!r}; this version reads message, function_call, function_call_output and "
            "reasoning",
            param=f"{path}.type",
        )


def _text(content: str | list[InputPart] | None, path: str) -> str:
    if content is None or isinstance(content, str):
        return content or ""
    pieces = []
    for index, part in enumerate(content):
        place = f"{path}[{index}]"
        if part.type == "refusal":
            pieces.append(part.refusal or "")
            continue
        if part.type not in _TEXT_PARTS:
            raise UnsupportedParameter(
                f"{place}.type is {part.type!r}; this version reads text parts only", param=f"{place}.type"
            )
        pieces.append(_given(part.text, f"{place}.text"))
    return "".join(pieces)


def _given(value: str | None, path: str) -> str:
    """Raises: RequestError where it is missing."""
    if value is None:
        raise RequestError(f"{path} is missing; it is required", param=path)
    return value
