"""A completion's text as it comes, and what parsers read from it.

A parser is a generator that yields where it needs more text, so a format is written down in the order in
which it is read, and where the stream is cut makes no difference: nothing is decided before the characters
that decide it are there. (`yield from source.text_until(...)` is a read that may wait.)
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Generator
from typing import TypeVar

import msgspec

T = TypeVar("T")
Steps = Generator[None, None, T]
Emit = Callable[[str], object]

_OUTSIDE = re.compile(r'["{}\[\]]')  # what counts outside a string of JSON
_INSIDE = re.compile(r'["\\]')
_SCALAR = re.compile(r"[-+.0-9A-Za-z]")
_CLOSERS = {"{": "}", "[": "]"}


class Broken(Exception):
    """The text is not of the format."""


class Source:
    """One reader. `is_over`: nothing will be added any more, and no read waits."""

    def __init__(self) -> None:
        self.is_over = False
        self._text = ""
        self._at = 0
        self._kept: list[str] | None = None

    def add(self, text: str) -> None:
        self._text = self._text[self._at :] + text
        self._at = 0

    def keep(self, begin: str) -> None:
        """From now on remember what is read, after `begin`."""
        self._kept = [begin]

    def kept(self) -> str:
        """What was read since `keep`, which ends here."""
        kept, self._kept = self._kept or [], None
        return "".join(kept)

    def take(self, count: int) -> str:
        """The next characters, which are there."""
        text = self._text[self._at : self._at + count]
        self._at += count
        if self._kept is not None:
            self._kept.append(text)
        return text

    def rest(self, emit: Emit) -> Steps[None]:
        """Hand on everything to the end."""
        while True:
            if self._at < len(self._text):
                emit(self.take(len(self._text) - self._at))
            if self.is_over:
                return
            yield

    def starts_with(self, marker: str) -> Steps[bool]:
        """Whether `marker` comes next; it is not consumed."""
        while True:
            here = self._text[self._at : self._at + len(marker)]
            if here == marker:
                return True
            if self.is_over or not marker.startswith(here):
                return False
            yield

    def next_is(self, marker: str) -> Steps[bool]:
        """The same, and consumes it."""
        found = yield from self.starts_with(marker)
        if found:
            self.take(len(marker))
        return found

    def expect(self, marker: str) -> Steps[None]:
        """Raises: Broken where something else comes."""
        found = yield from self.next_is(marker)
        if not found:
            raise Broken(marker)

    def spaces(self) -> Steps[str]:
        """Consume white space."""
        taken = ""
        while True:
            end = self._at
            while end < len(self._text) and self._text[end].isspace():
                end += 1
            taken += self.take(end - self._at)
            if self._at < len(self._text) or self.is_over:
                return taken
            yield

    def pass_until(self, markers: tuple[str, ...], emit: Emit) -> Steps[str]:
        """Hand on what comes before the first of `markers`; it is consumed and returned, "" at the end."""
        while True:
            found = [(at, marker) for marker in markers if (at := self._text.find(marker, self._at)) >= 0]
            end = min(found)[0] if found else len(self._text) - self._begun(markers)
            if end > self._at:
                emit(self.take(end - self._at))
            if found:
                return self.take(len(min(found)[1]))
            if self.is_over:
                return ""
            yield

    def text_until(self, *markers: str) -> Steps[tuple[str, str]]:
        """What comes before the first of `markers`, and that one, consumed. Raises: Broken at the end."""
        pieces: list[str] = []
        marker = yield from self.pass_until(markers, pieces.append)
        if not marker:
            raise Broken(markers[0])
        return "".join(pieces), marker

    def json_string(self) -> Steps[str]:
        """Raises: Broken."""
        yield from self.expect('"')
        pieces = ['"']
        while True:
            piece, marker = yield from self.text_until('"', "\\")
            pieces += (piece, marker)
            if marker == '"':
                return str(decoded("".join(pieces)))
            escaped = yield from self._character()
            pieces.append(escaped)

    def json_object(self, emit: Emit, begin: str = "") -> Steps[str]:
        """Hand on an object, or an array, as it is written, and return all of it.

        Args: begin: what of it has been consumed.

        Raises: Broken.
        """
        scan, pieces = _Nesting(), [begin]
        scan.end_in(begin, 0)
        while True:
            end = scan.end_in(self._text, self._at)
            stop = len(self._text) if end is None else end
            if stop > self._at:
                pieces.append(self.take(stop - self._at))
                emit(pieces[-1])
            if end is not None:
                break
            if self.is_over:
                raise Broken("the end of an object")
            yield
        whole = "".join(pieces)
        decoded(whole)
        return whole

    def json_scalar(self) -> Steps[str]:
        """A number, true, false or null, as it is written. Raises: Broken."""
        text = ""
        while True:
            char = yield from self._peek()
            if not _SCALAR.match(char):
                break
            text += self.take(1)
        decoded(text)
        return text

    def json_value(self) -> Steps[str]:
        """Any value, as it is written. Raises: Broken."""
        char = yield from self._peek()
        if char == '"':
            text = yield from self.json_string()
            return json.dumps(text)
        if char in _CLOSERS:
            value = yield from self.json_object(_nowhere)
            return value
        value = yield from self.json_scalar()
        return value

    def _peek(self) -> Steps[str]:
        """The next character, "" at the end."""
        while self._at == len(self._text) and not self.is_over:
            yield
        return self._text[self._at : self._at + 1]

    def _character(self) -> Steps[str]:
        yield from self._peek()
        return self.take(1)

    def _begun(self, markers: tuple[str, ...]) -> int:
        """How many characters at the end may be the begin of a marker."""
        if self.is_over:
            return 0
        longest = min(max(map(len, markers)) - 1, len(self._text) - self._at)
        for count in range(longest, 0, -1):
            tail = self._text[-count:]
            if any(marker.startswith(tail) for marker in markers):
                return count
        return 0


class _Nesting:
    """Finds where an object or array ends."""

    def __init__(self) -> None:
        self._closers: list[str] = []
        self._in_string = self._is_escaped = False

    def end_in(self, text: str, at: int) -> int | None:
        """The place behind the value's end, if it is in `text`. Raises: Broken for a wrong bracket."""
        while at < len(text):
            if self._is_escaped:
                self._is_escaped, at = False, at + 1
                continue
            found = (_INSIDE if self._in_string else _OUTSIDE).search(text, at)
            if found is None:
                return None
            at = found.end()
            self._turn(found[0])
            if not self._closers:
                return at
        return None

    def _turn(self, char: str) -> None:
        if char == "\\":
            self._is_escaped = True
        elif char == '"':
            self._in_string = not self._in_string
        elif char in _CLOSERS:
            self._closers.append(_CLOSERS[char])
        elif not self._closers or self._closers.pop() != char:
            raise Broken(char)


def decoded(text: str) -> object:
    """The value of JSON as RFC 8259 has it: no NaN, no number beyond a float, no half of a surrogate pair.

    Raises: Broken.
    """
    try:
        return msgspec.json.decode(text)
    except (ValueError, RecursionError):
        raise Broken(text) from None


def _nowhere(text: str) -> None:
    pass
