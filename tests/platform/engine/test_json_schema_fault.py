"""The part of a schema that is at fault, by a compiler made up here."""

from __future__ import annotations

from typing import Any

import pytest

from trivet.engine import json_schema_fault
from trivet.engine.json_schema_fault import find_fault


def error_of(part: object) -> str:
    """A schema is bad where the word "bad" stands as a keyword, anywhere in it."""
    if isinstance(part, dict):
        inner = [error_of(value) for value in part.values()]
        return "bad" if "bad" in part or any(inner) else ""
    return "bad" if isinstance(part, list) and any(map(error_of, part)) else ""


@pytest.mark.parametrize(
    ("schema", "pointer"),
    [
        ({"bad": 1}, "its root"),
        ({"items": {"bad": 1}}, "/items"),
        ({"properties": {"a": {}, "b/c~d": {"anyOf": [{}, {"bad": 1}]}}}, "/properties/b~1c~0d/anyOf/1"),
        ({"$defs": {"x": {"bad": 1}}, "properties": {"a": {"$ref": "#/$defs/x"}}}, "/$defs/x"),
        ({"enum": [{"bad": 1}]}, "its root"),
    ],
)
def test_the_smallest_part_with_the_error_is_named(schema: Any, pointer: str) -> None:
    assert find_fault(schema, error_of) == (pointer, "bad")


def test_a_part_that_fails_otherwise_by_itself_is_not_at_fault() -> None:
    """A reference to what is around it, for one: it points to nothing when it stands alone."""

    def errors(part: object) -> str:
        return "bad" if "bad" in str(part) else "points to nothing" if part == {"$ref": "#/x"} else ""

    schema = {"properties": {"a": {"$ref": "#/x"}, "b": {"bad": 1}}}
    assert find_fault(schema, errors).pointer == "/properties/b"


def test_the_search_ends_when_its_time_is_over(monkeypatch: pytest.MonkeyPatch) -> None:
    """200 definitions of a megabyte took 20 s of the thread that compiles for all."""
    monkeypatch.setattr(json_schema_fault, "MAX_SEARCH_S", 0.0)
    assert find_fault({"items": {"bad": 1}}, error_of) == ("its root", "bad")
