"""Typed access to the values of a model's config, which a stranger wrote.

Limits are far above what models have and keep a damaged number from costing memory or time later.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from trivet.errors import ModelFilesError

LARGEST = 1 << 40
LARGEST_NUMBER, SMALLEST_POSITIVE = 1e12, 1e-6


class ConfigValues:
    """Reads values by name; None counts as absent, as it does in transformers."""

    def __init__(self, values: Mapping[str, Any], source: str) -> None:
        self.values = values
        self.source = source

    def get(self, name: str) -> Any:
        return self.values.get(name)

    def wrong(self, name: str, needed: str) -> ModelFilesError:
        shown = "missing" if self.get(name) is None else repr(self.get(name))[:80]
        return ModelFilesError(f"{self.source}: {name} is {shown}; it must be {needed}: correct the file")

    def integer(self, name: str, default: int | None = None, *, least: int = 1, most: int = LARGEST) -> int:
        """A whole number; 4096.0 counts as one."""
        value = self.get(name)
        value = default if value is None else value
        if isinstance(value, float) and value.is_integer():
            value = int(value)
        if type(value) is not int or not least <= value <= most:
            raise self.wrong(name, f"a whole number from {least} to {most}")
        return value

    def number(self, name: str, default: float | None = None, *, least: float = 0.0) -> float:
        """A number from `least` to 1e12."""
        value = self.get(name)
        value = default if value is None else value
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise self.wrong(name, "a number")
        if not least <= value <= LARGEST_NUMBER:  # NaN fails both
            raise self.wrong(name, f"a number from {least:g} to {LARGEST_NUMBER:g}")
        return float(value)

    def positive(self, name: str, default: float | None = None) -> float:
        """A number from 1e-6 to 1e12, by which one may divide."""
        return self.number(name, default, least=SMALLEST_POSITIVE)

    def flag(self, name: str, default: bool = False) -> bool:
        value = self.get(name)
        value = default if value is None else value
        if not isinstance(value, bool):
            raise self.wrong(name, "true or false")
        return value

    def text(self, name: str, default: str | None = None) -> str:
        value = self.get(name)
        value = default if value is None else value
        if not isinstance(value, str):
            raise self.wrong(name, "a text")
        return value

    def numbers(self, name: str, length: int) -> tuple[float, ...]:
        """A list of `length` numbers from 1e-6 to 1e12."""
        value = self.get(name)
        if not isinstance(value, list) or len(value) != length:
            raise self.wrong(name, f"a list of {length} numbers")
        for item in value:
            is_number = isinstance(item, int | float) and not isinstance(item, bool)
            if not is_number or not SMALLEST_POSITIVE <= item <= LARGEST_NUMBER:
                raise self.wrong(name, f"a list of {length} numbers greater than 0")
        return tuple(float(item) for item in value)
