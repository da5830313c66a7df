"""What commands print of what strangers wrote."""

from __future__ import annotations

import pytest

from trivet.commands.output import note, print_table


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
