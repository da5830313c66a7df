"""The pages of docker/handbook, and the blocks of commands in them.

A block of ```sh is run by `tests/run operations`; above one without a language stands why it is not.
A block of ```text has lines of what the commands above it print.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

PAGES = sorted((Path(__file__).parents[2] / "docker" / "handbook").glob("*.md"))
LANGUAGES = ("sh", "text", "toml", "yaml", "")
_BLOCK = re.compile(r"^( *)```(\w*)\n(.*?)^ *```$", re.MULTILINE | re.DOTALL)


@dataclass(frozen=True)
class Block:
    """`before` is the paragraph above it, in one line."""

    page: Path
    line: int
    language: str
    text: str
    before: str

    def __str__(self) -> str:
        return f"{self.page.name}:{self.line}"


def blocks(language: str | None = None) -> list[Block]:
    """In the order of the pages; None: of every language."""
    return [block for page in PAGES for block in _blocks(page) if language in (None, block.language)]


def _blocks(page: Path) -> Iterator[Block]:
    text = page.read_text()
    for found in _BLOCK.finditer(text):
        above = text[: found.start()].rstrip().rpartition("\n\n")[2]
        line = text.count("\n", 0, found.start()) + 1
        yield Block(page, line, found[2], found[3], " ".join(above.split()))


def anchors(page: Path) -> set[str]:
    """Of the headings, as GitHub makes them."""
    headings = [line.lstrip("#").strip().lower() for line in page.read_text().splitlines() if line[:1] == "#"]
    return {re.sub(r"[^\w -]", "", heading).replace(" ", "-") for heading in headings}
