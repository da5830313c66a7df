"""Tools for a model whose chat template has none: described in the system message, called as Hermes writes.

The words are those that Hermes 2 Pro and Qwen 2.5 were trained with, which other models follow best.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from trivet.text.chat_messages import normalize_messages, with_json_arguments

_BEGIN = (
    "# Tools\n\nYou may call one or more functions to assist with the user query.\n\n"
    "You are provided with function signatures within <tools></tools> XML tags:\n<tools>"
)
_END = (
    "\n</tools>\n\nFor each function call, return a json object with function name and arguments within "
    '<tool_call></tool_call> XML tags:\n<tool_call>\n{"name": <function-name>, "arguments": '
    "<args-json-object>}\n</tool_call>"
)

Message = dict[str, Any]


def with_tools_told(
    messages: Sequence[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]] | None
) -> list[Message]:
    """Messages of plain text: tools in the system's, calls in the assistant's, results in the user's.

    Raises: RequestError naming the message that is wrong.
    """
    plain = with_json_arguments(normalize_messages(messages, keeps_null_content=False))
    told = [_as_text(message) for message in plain]
    if not tools:
        return told
    listed = "".join(f"\n{json.dumps(tool, ensure_ascii=False)}" for tool in tools)
    text = f"{_BEGIN}{listed}{_END}"
    if told[0]["role"] == "system":
        first = {**told[0], "content": f"{told[0]['content']}\n\n{text}".strip()}
        return [first, *told[1:]]
    return [{"role": "system", "content": text}, *told]


def has_calls(messages: Sequence[Mapping[str, Any]]) -> bool:
    """Whether the conversation has calls or results of tools in it."""
    return any(message.get("tool_calls") or message.get("role") == "tool" for message in messages)


def _as_text(message: Message) -> Message:
    if message["role"] == "tool":
        return {"role": "user", "content": f"<tool_response>\n{message['content']}\n</tool_response>"}
    calls = message.get("tool_calls")
    if not calls:
        return message
    written = [_written(call.get("function") or {}) for call in calls if isinstance(call, Mapping)]
    return {"role": "assistant", "content": "\n".join(filter(None, [message["content"], *written]))}


def _written(function: Mapping[str, Any]) -> str:
    call = {"name": function.get("name"), "arguments": function.get("arguments")}
    return f"<tool_call>\n{json.dumps(call, ensure_ascii=False)}\n</tool_call>"
