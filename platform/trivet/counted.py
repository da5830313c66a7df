"""A number with its noun, as sentences have it."""

from __future__ import annotations


def counted(count: int, noun: str, plural: str = "") -> str:
    """`1 file`, `2 files`, `0 files`; `plural` where it is not the noun with an s."""
    return f"{count:,} {noun if count == 1 else plural or f'{noun}s'}"
