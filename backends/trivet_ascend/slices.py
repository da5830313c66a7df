"""Which rows or columns of a matrix are whose, where several ranks hold a model together."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Span:
    """Rows or columns `start` to `stop`."""

    start: int
    stop: int

    @property
    def size(self) -> int:
        return self.stop - self.start


@dataclass(frozen=True, slots=True)
class Rank:
    """One of `count` processes that hold a model together."""

    index: int = 0
    count: int = 1

    def height(self, size: int) -> int:
        """Rows of each rank but the last, of `size`."""
        return -(-size // self.count)

    def part(self, size: int) -> Span:
        """This rank's share of `size` rows; the last may be shorter."""
        height = self.height(size)
        return Span(min(size, self.index * height), min(size, (self.index + 1) * height))
