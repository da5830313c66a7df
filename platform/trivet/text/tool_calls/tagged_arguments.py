"""Arguments that a model writes between tags, one by one and without quotes: to JSON by the schema."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from trivet.text.tool_calls.parser import ToolParser
from trivet.text.tool_calls.source import Broken, decoded

MAX_DEPTH = 8
_NAMES = {str: "string", type(None): "null"}


class TaggedArguments:
    """The arguments of one call, handed on one after the other."""

    def __init__(self, parser: ToolParser, name: str) -> None:
        """Raises: Broken for no name."""
        parser.start(name)
        self._parser = parser
        self._schema = parser.tools.get(name, {})
        self._begin = "{"

    def add(self, key: str, text: str) -> None:
        value = _value_of(text, self._types_of(key))
        pair = f"{json.dumps(key, ensure_ascii=False)}: {json.dumps(value, ensure_ascii=False)}"
        self._parser.arguments(self._begin + pair)
        self._begin = ", "

    def end(self) -> None:
        self._parser.arguments("{}" if self._begin == "{" else "}")
        self._parser.end()

    def _types_of(self, key: str) -> set[str]:
        properties = self._schema.get("properties")
        wanted = properties.get(key) if isinstance(properties, Mapping) else None
        return _types(wanted, self._schema, MAX_DEPTH)


def _types(schema: object, root: Mapping[str, Any], depth: int) -> set[str]:
    """JSON Schema's names of the types that a value may have; empty: it does not say.

    Args: root: what its references are relative to; depth: how many schemas in each other are still read.
    """
    if not isinstance(schema, Mapping) or not depth:
        return set()
    if isinstance(reference := schema.get("$ref"), str):
        return _types(_at(reference, root), root, depth - 1)
    for values in (schema.get("enum"), [schema["const"]] if "const" in schema else None):
        if isinstance(values, list):
            return {_NAMES.get(type(value), "other") for value in values}
    named = schema.get("type")
    if isinstance(named, str):
        return {named}
    if isinstance(named, list):
        return {name for name in named if isinstance(name, str)}
    for keyword in ("anyOf", "oneOf"):
        if isinstance(branches := schema.get(keyword), list):
            each = [_types(branch, root, depth - 1) for branch in branches]
            return set().union(*each) if all(each) else set()
    return set()


def _at(reference: str, root: Mapping[str, Any]) -> object:
    """What `#/$defs/Name` and the like name, or None."""
    place: object = root if reference.startswith("#") else None
    for name in reference.split("/")[1:]:
        place = place.get(name.replace("~1", "/").replace("~0", "~")) if isinstance(place, Mapping) else None
    return place


def _value_of(text: str, types: set[str]) -> object:
    """A string where the schema wants one, also if its text looks like a number; else JSON, or a string."""
    if "string" in types and types <= {"string", "null"}:
        return None if "null" in types and text == "null" else text
    try:
        return decoded(text)
    except Broken:
        return text
