"""Schemas of calls that a request requires."""

from __future__ import annotations

from typing import Any

import jsonschema
import pytest

from trivet.text.tool_calls.forced import named_schema, required_schema

CITY: dict[str, Any] = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}


def takes(schema: dict[str, Any], value: object) -> bool:
    return jsonschema.Draft202012Validator(schema).is_valid(value)


@pytest.mark.parametrize("parameters", [CITY, {}, {"properties": {}, "type": "object"}])
def test_a_function_has_no_parameters_beside_those_it_declares(parameters: dict[str, Any]) -> None:
    good = {"city": "Paris"} if "required" in parameters else {}
    for schema in (named_schema(parameters), required_schema({"f": parameters}, 1)):
        is_list = schema["type"] == "array"
        for value, is_taken in ((good, True), ({**good, "exclusiveMaximum": 3}, False)):
            text: object = [{"name": "f", "arguments": value}] if is_list else value
            assert takes(schema, text) is is_taken


@pytest.mark.parametrize(
    "more",
    [
        {"additionalProperties": True},
        {"patternProperties": {"^x": {}}},
        {"allOf": [{"properties": {"x": {}}}]},
        {"$ref": "#/$defs/a", "$defs": {"a": {}}},
    ],
)
def test_a_function_that_says_more_has_more(more: dict[str, Any]) -> None:
    assert takes(named_schema({**CITY, **more}), {"city": "Paris", "x": 1})
