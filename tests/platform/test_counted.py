"""A number with its noun."""

from __future__ import annotations

import pytest

from trivet.counted import counted


@pytest.mark.parametrize(
    ("count", "nouns", "text"),
    [
        (0, ("file",), "0 files"),
        (1, ("file",), "1 file"),
        (2500, ("file",), "2,500 files"),
        (1, ("entry", "entries"), "1 entry"),
        (2, ("entry", "entries"), "2 entries"),
    ],
)
def test_the_noun_has_the_number(count: int, nouns: tuple[str, ...], text: str) -> None:
    assert counted(count, *nouns) == text
