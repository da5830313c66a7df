"""How commands print: tables and reports for people, JSON for programs."""

from __future__ import annotations

import argparse
import re
import shutil
import sys
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import TextIO

import msgspec

_CONTROLS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")
_CONTROLS_OF_LOG = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1a\x1c-\x1f\x7f-\x9f]|\x1b(?!\[[0-9;]*m)")
GIB = 1 << 30
MIB = 1 << 20


def add_json_option(parser: argparse.ArgumentParser) -> None:
    """`--json`, which every list and report takes."""
    parser.add_argument("--json", action="store_true", help="print JSON instead of text")


def print_json(value: object) -> None:
    """Indented, with keys in the order in which they were made."""
    print(msgspec.json.format(msgspec.json.encode(value), indent=2).decode())


def print_table(
    headers: Sequence[str], rows: Sequence[Sequence[object]], cuts_last_to: int | None = None
) -> None:
    """Left-aligned columns, two spaces apart; None and "" show as "-", a row is one line.

    Args:
        cuts_last_to: on a terminal the last column ends at its edge, but has at least so many characters.
    """
    cells = [["-" if cell in (None, "") else on_one_line(str(cell)) for cell in row] for row in rows]
    table = [list(headers), *cells]
    widths = [max(len(row[i]) for row in table) for i in range(len(headers))]
    if cuts_last_to is not None and sys.stdout.isatty():
        room = shutil.get_terminal_size().columns - sum(width + 2 for width in widths[:-1])
        widths[-1] = max(cuts_last_to, room)
        table = [[*row[:-1], shortened(row[-1], widths[-1])] for row in table]
    for row in table:
        print("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())


def on_one_line(text: str) -> str:
    """What strangers wrote, such that a terminal shows it and does nothing by it: controls are escaped."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def shown_on(stream: TextIO, text: str, *, is_log: bool = False) -> str:
    """What a model or an engine wrote: on a terminal its controls are escaped, in a pipe it is as it is.

    Lines and tabs stay; of a log colours and the returns of progress bars, too.
    """
    if not stream.isatty():
        return text
    pattern = _CONTROLS_OF_LOG if is_log else _CONTROLS
    return pattern.sub(lambda found: found[0].encode("unicode_escape").decode(), text)


def shortened(text: str, width: int) -> str:
    """On one line, and cut to `width` characters with dots at the end where it is longer."""
    line = " ".join(text.split())
    return line if len(line) <= width else f"{line[: width - 3].rstrip()}..."


def note(text: str) -> None:
    """Something for the person and not for the pipe: standard error."""
    print("\n".join(map(on_one_line, text.split("\n"))), file=sys.stderr, flush=True)


def bytes_text(size_bytes: int | None) -> str:
    """In GiB or MiB with one decimal."""
    if size_bytes is None:
        return "-"
    if abs(size_bytes) >= GIB:
        return f"{size_bytes / GIB:.1f} GiB"
    return f"{size_bytes / MIB:.1f} MiB"


def age_text(at: datetime | None, now: datetime | None = None) -> str:
    """How long ago, in its largest unit: "12s", "5m", "3h", "2d"."""
    if at is None:
        return "-"
    seconds = max(0.0, ((now or datetime.now(UTC)) - at).total_seconds())
    for size, unit in ((86_400, "d"), (3_600, "h"), (60, "m")):
        if seconds >= size:
            return f"{seconds / size:.0f}{unit}"
    return f"{seconds:.0f}s"
