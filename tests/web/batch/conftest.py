"""Runs `trivet generate` in this process, on the null backend."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from trivet import cli
from trivet.demo_model import find_demo_model

MODEL = str(find_demo_model())
NULL = ("--backend", "null", "--set", "max_model_len=512", "--set", "max_num_seqs=8")


@dataclass(frozen=True)
class Outcome:
    """What a command line did, and the lines that it wrote."""

    code: int
    err: str
    out: Path

    @property
    def lines(self) -> list[Any]:
        return [json.loads(line) for line in self.out.read_text().splitlines()]

    @property
    def journal(self) -> Path:
        return self.out.with_name(f"{self.out.name}.partial")


@pytest.fixture
def source(tmp_path: Path) -> Callable[..., Path]:
    """Writes an input file; text and bytes are lines as they are."""

    def write(*values: object) -> Path:
        file = tmp_path / "in.jsonl"
        lines = [v if isinstance(v, str | bytes) else json.dumps(v) for v in values]
        file.write_bytes(b"".join((v.encode() if isinstance(v, str) else v) + b"\n" for v in lines))
        return file

    return write


@pytest.fixture
def generate(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> Callable[..., Outcome]:
    def run(source: Path, *options: str) -> Outcome:
        out = tmp_path / "out.jsonl"
        try:
            code = cli.main(["generate", MODEL, *NULL, "-i", str(source), "-o", str(out), *options])
        except SystemExit as end:
            code = int(end.code or 0)
        return Outcome(code, capsys.readouterr().err, out)

    return run
