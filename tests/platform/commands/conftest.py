"""Runs command lines in this process."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import pytest

from trivet import cli


@dataclass(frozen=True)
class Outcome:
    """What a command line did."""

    code: int
    out: str
    err: str


@pytest.fixture
def trivet(capsys: pytest.CaptureFixture[str]) -> Callable[..., Outcome]:
    """`trivet("launch", "x")` runs one command line."""

    def run(*arguments: str) -> Outcome:
        try:
            code = cli.main(arguments)
        except SystemExit as end:
            code = int(end.code or 0)
        captured = capsys.readouterr()
        return Outcome(code, captured.out, captured.err)

    return run
