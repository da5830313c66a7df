"""How much one rendering of a chat template may do."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping, Sequence

from jinja2.exceptions import SecurityError

MAX_TEXT = 16 << 20  # characters of the output and of any string on the way; a request's body is 16 MiB
MAX_STEPS = 2_000_000  # loop turns, calls and filters: about 2 s
MAX_INTEGER_BITS = 4096
MAX_WIDTH = 999  # of a field in a format, of an indent

# A width or precision of four digits or more, or one that comes from an argument.
_WIDE_FIELD = re.compile(r"%(?:\([^)]*\))?[-#0 +_^]*(?:\d*\.)?(?:\d{4,}|\*)")
_TEXT_PER_STEP = 128  # characters that are worked on in about the time of one step
_SLOW_TEXT_PER_STEP = 4  # where a pattern is matched on the way
_PIECES_PER_STEP = 4
_ITEMS_PER_STEP = 16


class Budget:
    """What one rendering may still do."""

    __slots__ = ("max_steps", "steps")

    def __init__(self, max_steps: int) -> None:
        self.max_steps = self.steps = max_steps

    def spend(self, steps: int) -> None:
        self.steps -= steps
        if self.steps < 0:
            raise SecurityError(f"it takes more than {self.max_steps} loop turns, calls and filters")

    def spend_on(self, value: object) -> None:
        """For one pass over a value."""
        if isinstance(value, str):
            self.spend(1 + len(value) // _TEXT_PER_STEP)
        elif isinstance(value, Sequence | Mapping):
            self.spend(1 + len(value) // _ITEMS_PER_STEP)
        else:
            self.spend(1)

    def spend_on_items(self, value: object) -> None:
        """For a look at each item, which may be compared with the others."""
        if isinstance(value, str) or not isinstance(value, Collection):
            return self.spend(1 + len(value) if isinstance(value, str) else 1)
        for item in value:
            if isinstance(item, str):
                self.spend(1 + len(item) // _TEXT_PER_STEP)
            else:
                self.spend(1 + len(item) if isinstance(item, list | tuple) else 1)
        return self.spend(1)

    def spend_on_slow_pass(self, text: object) -> None:
        """For one that matches a pattern, or makes an object of each character or number."""
        if isinstance(text, str | range):
            self.spend(len(text) // _SLOW_TEXT_PER_STEP)

    def spend_on_pieces(self, pieces: object) -> None:
        """For those that a text was split into."""
        if isinstance(pieces, list):
            self.spend(len(pieces) // _PIECES_PER_STEP)

    def spend_on_tree(self, value: object) -> None:
        """For writing out a value in full.

        `[x, x]` thirty times over is small in memory and a gigabyte of text.
        """
        stack = [value]
        while stack:
            item = stack.pop()
            self.spend(1 + len(item) // _TEXT_PER_STEP if isinstance(item, str) else 1)
            if isinstance(item, Mapping):
                stack.extend(item.values())
            elif isinstance(item, list | tuple):
                stack.extend(item)


def check_text(length: int) -> None:
    """Of a string about to be made."""
    if length > MAX_TEXT:
        raise SecurityError(f"it makes a text of {length} characters; {MAX_TEXT} are allowed")


def check_integer(bits: int) -> None:
    """Of a number about to be made."""
    if bits > MAX_INTEGER_BITS:
        raise SecurityError(f"it makes a number of more than {MAX_INTEGER_BITS} bits")


def check_widths(pattern: str) -> None:
    """Of a printf or strftime format."""
    if wide := _WIDE_FIELD.search(pattern):
        raise SecurityError(f"the format field {wide[0]!r} may be wider than {MAX_WIDTH} characters")


def check_field(spec: str) -> None:
    """Of one `{:spec}`, after its arguments have been put in."""
    if re.search(r"\d{4,}", spec):
        raise SecurityError(f"the format field {spec[:40]!r} is wider than {MAX_WIDTH} characters")


def check_arguments(pattern: str, arguments: Iterable[object]) -> None:
    """Of a printf or str.format format: each of its fields may write out the longest argument."""
    longest = max((len(argument) for argument in arguments if isinstance(argument, str)), default=0)
    check_text(len(pattern) + (pattern.count("%") + pattern.count("{")) * longest)
