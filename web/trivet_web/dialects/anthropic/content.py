"""Turns of Anthropic's form, whose content is blocks, as messages of a chat."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, TypeAlias, TypeVar

import msgspec

from trivet.errors import RequestError, UnsupportedParameter
from trivet_web.api.conversation import FunctionCall, Message, ToolCall

T = TypeVar("T")


class Block(msgspec.Struct, frozen=True, kw_only=True):
    """A piece of a turn; which fields it has depends on its type."""

    type: str
    text: str | None = None
    thinking: str | None = None
    id: str | None = None  # of tool_use, as name and input
    name: str | None = None
    input: dict[str, Any] | None = None
    tool_use_id: str | None = None  # of tool_result, as content and is_error
    content: str | list[Block] | None = None
    is_error: bool | None = None


Content: TypeAlias = str | list[Block]


class Turn(msgspec.Struct, frozen=True, kw_only=True):
    """What one side said."""

    role: Literal["user", "assistant", "system"]
    content: Content


def messages_of(system: Content | None, turns: Sequence[Turn]) -> list[Message]:
    """In order. Raises: RequestError, UnsupportedParameter naming the block."""
    if not turns:
        raise RequestError("messages is empty; send at least one message", param="messages")
    messages = [] if not system else [Message(role="system", content=_text(system, "system"))]
    for index, turn in enumerate(turns):
        place = f"messages[{index}].content"
        if turn.role == "assistant":
            messages.append(_of_model(turn.content, place))
        else:
            messages += _of_user(turn, place)
    return messages


def _of_model(content: Content, place: str) -> Message:
    if isinstance(content, str):
        return Message(role="assistant", content=content)
    text, thought, calls = "", "", []
    for index, block in enumerate(content):
        where = f"{place}[{index}]"
        if block.type == "text":
            text += _given(block.text, f"{where}.text")
        elif block.type == "thinking":
            thought += _given(block.thinking, f"{where}.thinking")
        elif block.type == "tool_use":
            arguments = msgspec.json.encode(_given(block.input, f"{where}.input")).decode()
            function = FunctionCall(_given(block.name, f"{where}.name"), arguments)
            calls.append(ToolCall(function, _given(block.id, f"{where}.id")))
        elif block.type != "redacted_thinking":  # which nobody here can read
            raise _unknown(block, where, "text, thinking and tool_use")
    return Message(
        role="assistant",
        content=text or (None if calls else ""),
        reasoning_content=thought or None,
        tool_calls=calls or None,
    )


def _of_user(turn: Turn, place: str) -> list[Message]:
    """Results of tools are messages of their own."""
    if isinstance(turn.content, str):
        return [Message(role=turn.role, content=turn.content)]
    messages: list[Message] = []
    for index, block in enumerate(turn.content):
        where = f"{place}[{index}]"
        if block.type == "tool_result":
            messages.append(_result(block, where))
        elif block.type != "text":
            raise _unknown(block, where, "text and tool_result")
        elif messages and messages[-1].role == turn.role:
            text = f"{messages[-1].content}{_given(block.text, f'{where}.text')}"
            messages[-1] = Message(role=turn.role, content=text)
        else:
            messages.append(Message(role=turn.role, content=_given(block.text, f"{where}.text")))
    return messages or [Message(role=turn.role, content="")]


def _result(block: Block, where: str) -> Message:
    text = _text(block.content or "", f"{where}.content")
    if block.is_error:  # templates have no place for it
        text = f"Error: {text}"
    return Message(role="tool", content=text, tool_call_id=_given(block.tool_use_id, f"{where}.tool_use_id"))


def _text(content: Content, place: str) -> str:
    if isinstance(content, str):
        return content
    pieces = []
    for index, block in enumerate(content):
        where = f"{place}[{index}]"
        if block.type != "text":
            raise _unknown(block, where, "text")
        pieces.append(_given(block.text, f"{where}.text"))
    return "".join(pieces)


def _unknown(block: Block, where: str, known: str) -> UnsupportedParameter:
    return UnsupportedParameter(
        f"{where}.type is {block.type[:80]!r}; this version reads {known} there", param=f"{where}.type"
    )


def _given(value: T | None, where: str) -> T:
    """Raises: RequestError where it is missing."""
    if value is None:
        raise RequestError(f"{where} is missing; it is required", param=where)
    return value
