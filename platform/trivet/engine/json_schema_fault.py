"""Finds the part of a JSON Schema that cannot be carried out, for a message that names it.

The compiler says what is wrong, but not where: so the smallest part is sought that fails by itself.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

MAX_SEARCH_S = 1.0  # then the pointer that was reached has to do: a part may bring 1 MB of definitions
_DEFINITIONS = ("$defs", "definitions")
_MAPS = (*_DEFINITIONS, "properties", "patternProperties", "dependentSchemas")
_LISTS = ("prefixItems", "anyOf", "allOf", "oneOf")
_SINGLES = ("items", "additionalProperties", "contains", "propertyNames", "not", "if", "then", "else")


class Fault(NamedTuple):
    """A JSON pointer (RFC 6901; the whole schema is "its root") and what the compiler says of the part."""

    pointer: str
    reason: str


def find_fault(schema: object, error_of: Callable[[object], str]) -> Fault:
    """The smallest part of a schema with its error. `error_of` is empty for one that is good."""
    definitions: dict[str, Any] = {}
    if isinstance(schema, dict):
        definitions = {name: schema[name] for name in _DEFINITIONS if name in schema}
    reason, pointer, part = error_of(schema), "", schema
    inner: Iterator[tuple[str, object]] = _parts(part)
    end_s = time.monotonic() + MAX_SEARCH_S
    while time.monotonic() < end_s:
        found = next(inner, None)
        if found is None:
            break
        step, child = found
        # A part alone may fail in other ways: a reference into what is around it, `false` for a property.
        alone = {**definitions, **child} if isinstance(child, dict) else child
        if error_of(alone) == reason:
            pointer, part = pointer + step, child
            inner = _parts(part)
    return Fault(pointer or "its root", reason)


def _parts(schema: object) -> Iterator[tuple[str, object]]:
    """The schemas inside a schema, with the step of the pointer that leads to each."""
    if not isinstance(schema, dict):
        return
    for keyword in _MAPS:
        inner = schema.get(keyword)
        if isinstance(inner, dict):
            yield from ((f"/{keyword}/{_escaped(name)}", part) for name, part in inner.items())
    for keyword in _LISTS:
        inner = schema.get(keyword)
        if isinstance(inner, list):
            yield from ((f"/{keyword}/{index}", part) for index, part in enumerate(inner))
    for keyword in _SINGLES:
        if keyword in schema:
            yield f"/{keyword}", schema[keyword]


def _escaped(name: str) -> str:
    return name.replace("~", "~0").replace("/", "~1")
