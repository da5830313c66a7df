"""The filters that chat templates may use: Jinja's, some bounded, less those that only lay out text."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from typing import Any

from jinja2.environment import Environment
from jinja2.filters import FILTERS as JINJA_FILTERS
from jinja2.filters import do_indent, make_attrgetter
from jinja2.utils import pass_environment

from trivet.text.template_limits import MAX_WIDTH, check_arguments, check_text, check_widths

_LAYOUT = {"batch", "center", "filesizeformat", "pprint", "random", "slice", "urlize", "wordwrap", "xmlattr"}
# Filters that write out what they are given, all the way down.
WRITING = frozenset(
    {"tojson", "string", "join", "format", "escape", "e", "forceescape", "urlencode", "trim", "replace"}
)
# Filters that look at each item, as they are called or later.
VISITING = frozenset(
    {
        "dictsort",
        "groupby",
        "map",
        "max",
        "min",
        "reject",
        "rejectattr",
        "select",
        "selectattr",
        "sort",
        "unique",
    }
)
# Filters that match a pattern in a text, or make an object of each character.
SLOW = frozenset({"list", "striptags", "title", "urlencode", "wordcount"})


def to_json(
    value: object,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """Plain JSON, as models were trained on: Jinja's own filter escapes for HTML."""
    if indent is not None and not 0 <= indent <= MAX_WIDTH:
        raise ValueError(f"tojson's indent is {indent}; it must be between 0 and {MAX_WIDTH}")
    return json.dumps(
        value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
    )


def join(parts: Iterable[object], separator: object = "") -> str:
    """`separator.join(parts)` of anything that has a text."""
    texts = [str(part) for part in parts]
    check_text(sum(map(len, texts)) + len(str(separator)) * len(texts))
    return str(separator).join(texts)


def replace(text: object, old: str, new: str, count: int | None = None) -> str:
    """`text.replace(old, new, count)`."""
    text, old, new = str(text), str(old), str(new)
    limit = -1 if count is None else count
    found = text.count(old)
    check_text(len(text) + len(new) * (found if limit < 0 else min(found, limit)))
    return text.replace(old, new, limit)


def format_text(text: object, *args: object, **kwargs: object) -> str:
    """Fields as in printf."""
    if args and kwargs:
        raise TypeError("format takes positional or keyword arguments, not both")
    return percent(str(text), kwargs or args)


def percent(text: str, arguments: object) -> str:
    """`text % arguments`."""
    check_widths(text)
    given = arguments.values() if isinstance(arguments, dict) else arguments
    check_arguments(text, given if isinstance(given, Iterable) and not isinstance(given, str) else (given,))
    return text % arguments


def indent(text: str, width: int | str = 4, first: bool = False, blank: bool = False) -> str:
    """Jinja's, within the limits."""
    size = len(width) if isinstance(width, str) else width
    if size > MAX_WIDTH:
        raise ValueError(f"indent's width is {size}; it must be at most {MAX_WIDTH}")
    check_text(len(text) + (text.count("\n") + 1) * size)
    return do_indent(text, width, first, blank)


@pass_environment
def _join_filter(
    environment: Environment, parts: Iterable[Any], separator: object = "", attribute: str | int | None = None
) -> str:
    return join(
        parts if attribute is None else map(make_attrgetter(environment, attribute), parts), separator
    )


FILTERS: dict[str, Callable[..., Any]] = {
    **{name: JINJA_FILTERS[name] for name in JINJA_FILTERS.keys() - _LAYOUT},
    "format": format_text,
    "indent": indent,
    "join": _join_filter,
    "replace": replace,
    "tojson": to_json,
}
