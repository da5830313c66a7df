"""Calls that a request requires: the grammar lets the model write nothing but their JSON."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from trivet.text.tool_calls.parser import ToolParser, Tools
from trivet.text.tool_calls.source import Steps

Schema = dict[str, Any]
MAX_CALLS = 64  # of one completion
# Keywords that name further parameters.
_SAYS_MORE = frozenset(
    {"additionalProperties", "patternProperties", "unevaluatedProperties", "$ref", "$dynamicRef"}
    | {"allOf", "anyOf", "oneOf", "not", "if", "then", "else", "dependentSchemas"}
)


class NamedCallParser(ToolParser):
    """The whole text is the arguments of the one function."""

    def calls(self) -> Steps[None]:
        """As `ToolParser`."""
        (name,) = self.tools
        yield from self.source.spaces()
        yield from self.attempt("", self._call(name))

    def _call(self, name: str) -> Steps[None]:
        if (yield from self.source.starts_with("{")):
            self.start(name)
            yield from self.source.json_object(self.arguments)
            self.end()


class RequiredCallsParser(ToolParser):
    """The whole text is a list of objects with `name` and `arguments`."""

    def calls(self) -> Steps[None]:
        """As `ToolParser`."""
        yield from self.source.spaces()
        if not (yield from self.source.next_is("[")):
            return
        while True:
            yield from self.source.spaces()
            if not (yield from self.attempt("", self.call_object())):
                return
            yield from self.source.spaces()
            if not (yield from self.source.next_is(",")):
                break
        yield from self.source.next_is("]")


def named_schema(parameters: Mapping[str, Any]) -> Schema:
    """Of the text that `NamedCallParser` reads: a function has the parameters that it declares, or none.

    In JSON Schema an object that lists its properties may have others. Small models made up some, and no
    function takes those.
    """
    closed = {} if parameters.keys() & _SAYS_MORE else {"additionalProperties": False}
    return {"type": "object", **closed, **parameters}


def required_schema(tools: Tools, max_calls: int) -> Schema:
    """Of the text that `RequiredCallsParser` reads: 1 to `max_calls` calls of these functions."""
    definitions: Schema = {}
    items = []
    for number, (name, parameters) in enumerate(tools.items()):
        place = f"tool{number}"
        definitions[place] = _moved(named_schema(parameters), f"#/$defs/{place}")
        fields = {"name": {"const": name}, "arguments": {"$ref": f"#/$defs/{place}"}}
        items.append(
            {
                "type": "object",
                "properties": fields,
                "required": ["name", "arguments"],
                "additionalProperties": False,
            }
        )
    return {
        "type": "array",
        "minItems": 1,
        "maxItems": max_calls,
        "items": {"anyOf": items},
        "$defs": definitions,
    }


def _moved(schema: object, root: str) -> object:
    """A schema whose references still hold when it stands at `root` of another one."""
    if isinstance(schema, list):
        return [_moved(part, root) for part in schema]
    if not isinstance(schema, dict):
        return schema
    moved = {key: _moved(part, root) for key, part in schema.items()}
    reference = schema.get("$ref")
    if isinstance(reference, str) and reference.startswith("#"):
        moved["$ref"] = root + reference[1:]
    return moved
