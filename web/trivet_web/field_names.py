"""Errors in the names of the fields that a client sent, where its request was translated to another.

The names are of the request at hand, because what an engine refuses is told when the view has long returned.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from flask import request

_PLACE = "trivet.field_names"  # in the environment: a view may go on in another context
_OWN_NAMES = "chat_template_kwargs"  # an error of it names variables of the template
_QUOTED = r"""(?<!\w)(?:'(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*")(?!\w)"""  # what the client wrote
_NO_FIELD = r"(?<![\w.])(?<!the )"  # before a name: part of another one, or a word of the sentence


def name_fields(names: Mapping[str, str]) -> None:
    """From here on errors of this request say `names[field]` for `field`, but for what they quote."""
    request.environ[_PLACE] = names


def in_names_of_client(message: str, param: str | None) -> tuple[str, str | None]:
    """An error of the request at hand, as its client is told it."""
    names: Mapping[str, str] = request.environ.get(_PLACE, {})
    if not names or param == _OWN_NAMES:
        return message, param
    longest_first = sorted(names, key=len, reverse=True)
    words = re.compile(rf"{_QUOTED}|{_NO_FIELD}\b({'|'.join(map(re.escape, longest_first))})\b")
    message = words.sub(lambda found: names.get(found[1] or "", found[0]), message)
    if param is None or param in names:
        return message, names.get(param or "")
    field, dot, rest = param.partition(".")
    return message, names.get(field, field) + dot + rest
