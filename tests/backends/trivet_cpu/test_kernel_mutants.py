"""The mutants of the kernels fit their sources; `tests/run mutants` tries them, which takes long."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest

from trivet_cpu.kernel_compiler import SOURCES

MUTANTS = tomllib.loads(Path(__file__).with_name("kernel_mutants.toml").read_text())["mutant"]


@pytest.mark.parametrize("mutant", MUTANTS, ids=[mutant["name"] for mutant in MUTANTS])
def test_the_line_that_a_mutant_breaks_stands_once_in_its_file(mutant: dict[str, str]) -> None:
    assert (SOURCES / mutant["file"]).read_text().count(mutant["old"]) == 1
