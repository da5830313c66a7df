"""What commands print of what strangers wrote."""

from __future__ import annotations

from io import StringIO

import pytest

from trivet.commands.output import note, print_table, shown_on


def test_no_cell_makes_a_row_or_moves_the_cursor(capsys: pytest.CaptureFixture[str]) -> None:
    rows = [("\x1b[1A\x1b[2Kgone", "two\nlines"), ("right\u202eleft", "模型 é")]
    print_table(("A", "B"), rows)
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 3
    assert [line.split() for line in lines[1:]] == [
        ["\\x1b[1A\\x1b[2Kgone", "two\\nlines"],
        ["right\\u202eleft", "模型", "é"],
    ]


def test_a_note_has_lines_and_no_other_controls(capsys: pytest.CaptureFixture[str]) -> None:
    note("one\ntwo\x1b[2J\r")
    assert capsys.readouterr().err == "one\ntwo\\x1b[2J\\r\n"


class Terminal(StringIO):
    def isatty(self) -> bool:
        return True


def test_what_a_model_says_does_nothing_to_a_terminal_and_is_whole_in_a_pipe() -> None:
    said = "a\tb\n\x1b]52;c;cm0=\x07\x1b[2J\r\x9b1m👨‍👩‍👧"
    assert shown_on(StringIO(), said) == said
    escaped = "a\tb\n\\x1b]52;c;cm0=\\x07\\x1b[2J\\r\\x9b1m👨‍👩‍👧"
    assert shown_on(Terminal(), said) == escaped


def test_a_log_keeps_its_colours_and_progress_bars() -> None:
    log = "\x1b[31mred\x1b[0m 1%\r2%\n\x1b]0;title\x07"
    assert shown_on(Terminal(), log, is_log=True) == "\x1b[31mred\x1b[0m 1%\r2%\n\\x1b]0;title\\x07"
