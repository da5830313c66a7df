"""The contract suite over the interpreted backend in float32, where greedy ids have to equal the reference's.

A process for each group of modules, so that pytest finds the plugin. The real model, of 30 layers, would take
the interpreter minutes: `-k` leaves it out.
"""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

CASES = "trivet.contract_suite.cases"
SUITE = ["-p", "trivet.contract_suite.plugin", "-p", "no:cacheprovider", "-q", "-rf"]
SUITE += ["--trivet-backend", "cuda-interpreted", "-k", "not real_model"]
# Modules, dtype, and at least so many cases that pass.
GROUPS = [
    (("arrays", "attention", "backend", "drafts", "failures", "isolation"), "f32", 40),
    (("engine", "order", "pooling", "randomness", "sampling", "scoring"), "f32", 40),
    (("drafts", "isolation", "order"), "bf16", 12),
]


@pytest.mark.timeout(600)
@pytest.mark.parametrize(("modules", "dtype", "least"), GROUPS)
def test_the_suite_of_the_contract_passes(
    tmp_path: Path, modules: tuple[str, ...], dtype: str, least: int
) -> None:
    command = [sys.executable, "-m", "pytest", *SUITE, "--trivet-dtype", dtype, "--pyargs"]
    command += [f"{CASES}.test_{module}" for module in modules]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-6000:]
    assert int(re.findall(r"(\d+) passed", done.stdout)[-1]) >= least, done.stdout
