"""Arguments that a model writes between tags, one by one and without quotes: to JSON by the schema."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from trivet.text.tool_calls.parser import ToolParser


class TaggedArguments:
    """The arguments of one call, handed on one after the other."""

    def __init__(self, parser: ToolParser, name: str) -> None:
        """Raises: Broken for no name."""
        parser.start(name)
        self._parser = parser
        self._schema = parser.tools.get(name, {})
        self._begin = "{"

    def add(self, key: str, text: str) -> None:
        value = text if _is_text(self._schema, key) else _value_of(text)
        pair = f"{json.dumps(key, ensure_ascii=False)}: {json.dumps(value, ensure_ascii=False)}"
        self._parser.arguments(self._begin + pair)
        self._begin = ", "

    def end(self) -> None:
        self._parser.arguments("{}" if self._begin == "{" else "}")
        self._parser.end()


def _is_text(schema: Mapping[str, Any], key: str) -> bool:
    """Whether the schema wants a string there; one that may be something else is read as JSON."""
    properties = schema.get("properties")
    wanted = properties.get(key) if isinstance(properties, Mapping) else None
    if not isinstance(wanted, Mapping):
        return False
    if isinstance(wanted.get("enum"), list):
        return all(isinstance(value, str) for value in wanted["enum"])
    return bool(wanted.get("type") == "string")


def _value_of(text: str) -> object:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return text
