"""Chat messages as templates expect them: plain dicts, contents as text, no nulls."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from trivet.errors import RequestError

Message = dict[str, Any]


def normalize_messages(messages: Sequence[Mapping[str, Any]], *, keeps_null_content: bool) -> list[Message]:
    """Copies of the messages in the form that templates were written for.

    Text parts are joined in order with nothing between, so a content of parts equals the same text as a
    string. Keys whose value is null are left out: clients send `"tool_calls": null`, and a template that
    finds the key there renders "None" or fails. A content that is null or absent, as beside tool calls,
    becomes "", or stays null for a template that asks for it.

    Raises: RequestError with param "messages" that names the message.
    """
    if not messages:
        raise RequestError("messages is empty; give at least one message", param="messages")
    return [
        _normalize(message, f"messages[{index}]", keeps_null_content)
        for index, message in enumerate(messages)
    ]


def with_json_arguments(messages: Sequence[Message]) -> list[Message]:
    """The messages with the arguments of their tool calls, which the API has as JSON text, as values.

    Most templates write `arguments | tojson`. Text that is no JSON, as a model may produce, stays text.
    """
    return [
        {**message, "tool_calls": [_with_parsed_arguments(call) for call in message["tool_calls"]]}
        if isinstance(message.get("tool_calls"), list)
        else message
        for message in messages
    ]


def _normalize(message: Mapping[str, Any], where: str, keeps_null_content: bool) -> Message:
    if not isinstance(message, Mapping):
        raise RequestError(
            f"{where} is a {type(message).__name__}; it must be an object with role and content",
            param="messages",
        )
    role = message.get("role")
    if not isinstance(role, str) or not role:
        raise RequestError(f"{where}.role is {role!r}; it must be a name such as 'user'", param="messages")
    plain = {key: value for key, value in message.items() if value is not None}
    if plain.get("tool_calls") == []:
        del plain["tool_calls"]
    content = message.get("content")
    plain["content"] = _text(content, f"{where}.content")
    if content is None and keeps_null_content:
        plain["content"] = None
    return plain


def _text(content: object, where: str) -> str:
    if content is None:
        return ""
    if isinstance(content, str):
        return content
    if not isinstance(content, Sequence):
        raise RequestError(
            f"{where} is a {type(content).__name__}; it must be a string or a list of text parts",
            param="messages",
        )
    return "".join(_part_text(part, f"{where}[{index}]") for index, part in enumerate(content))


def _part_text(part: object, where: str) -> str:
    if isinstance(part, str):
        return part
    kind = part.get("type") if isinstance(part, Mapping) else None
    text = part.get("text") if isinstance(part, Mapping) else None
    if kind == "text" and isinstance(text, str):
        return text
    what = f"of type {kind!r}" if kind != "text" else f"with the text {text!r}"
    raise RequestError(
        f"{where} is a part {what}; this model takes parts of the form {{'type': 'text', 'text': '...'}}",
        param="messages",
    )


def _with_parsed_arguments(call: object) -> object:
    function = call.get("function") if isinstance(call, Mapping) else None
    arguments = function.get("arguments") if isinstance(function, Mapping) else None
    if not isinstance(call, Mapping) or not isinstance(function, Mapping) or not isinstance(arguments, str):
        return call
    try:
        parsed = json.loads(arguments or "{}")
    except (ValueError, RecursionError):
        return call
    return {**call, "function": {**function, "arguments": parsed}}
