"""Errors of the request that a dialect was translated to, in the names of the dialect's own fields."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from trivet.errors import RequestError

_QUOTED = r"""(?<!\w)(?:'(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*")(?!\w)"""  # what the client wrote


@contextmanager
def renamed(names: Mapping[str, str]) -> Iterator[None]:
    """What the block raises says `names[field]` where it says `field`, but for what it quotes."""
    try:
        yield
    except RequestError as error:
        longest_first = sorted(names, key=len, reverse=True)
        words = re.compile(rf"{_QUOTED}|\b({'|'.join(map(re.escape, longest_first))})\b")
        error.args = (words.sub(lambda found: names.get(found[1] or "", found[0]), error.message),)
        if error.param is not None:
            field, dot, rest = error.param.partition(".")
            error.param = names.get(field, field) + dot + rest
        raise
