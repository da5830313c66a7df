"""The contract suite over the CUDA runner: with interpreted kernels where they decide, else with their twins.

In float32 greedy ids have to equal the reference's, in bfloat16 scores agree within the suite's bound.
A process for each group of modules, so that pytest finds the plugin. The real model, of 30 layers, would take
the interpreter minutes: `-k` leaves it out; so do numbers of threads, which this runner has none of.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from trivet_cuda_interpreted.backend import KERNELS

from trivet.contract_suite import cases

CASES = "trivet.contract_suite.cases"
SUITE = ["-p", "trivet.contract_suite.plugin", "-p", "no:cacheprovider", "-q", "-rf"]
SUITE += ["--trivet-backend", "cuda-interpreted"]
LEFT_OUT = "not real_model and not (number_of_threads and not 5)"
EVERY = tuple(
    sorted(file.stem.removeprefix("test_") for file in Path(cases.__file__).parent.glob("test_*.py"))
)
# What computes, modules, dtypes, what is left out, and at least so many cases that pass. Kinds of rope are
# other angles for one and the same kernel, computed before it, and kinds of files the same weights: the twins
# have them all. Chunks of every size are 40 s in one dtype.
FILES = "rope or bf16-file or tied or padded-head"
GROUPS = [
    ("kernels", ("arrays", "attention", "isolation", "models", "order"), ("f32",), FILES, 33),
    ("kernels", ("attention",), ("bf16",), "every_size", 7),
    ("twins", EVERY, ("f32", "bf16"), "", 280),
]


@pytest.mark.timeout(1800)
@pytest.mark.parametrize(("kernels", "modules", "dtypes", "without", "least"), GROUPS)
def test_the_suite_of_the_contract_passes(
    tmp_path: Path, kernels: str, modules: tuple[str, ...], dtypes: tuple[str, ...], without: str, least: int
) -> None:
    command = [sys.executable, "-m", "pytest", *SUITE, *(f"--trivet-dtype={dtype}" for dtype in dtypes)]
    command += ["-k", f"{LEFT_OUT} and not ({without})" if without else LEFT_OUT]
    command += ["--pyargs", *(f"{CASES}.test_{module}" for module in modules)]
    environment = {**os.environ, KERNELS: kernels}
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-6000:]
    assert int(re.findall(r"(\d+) passed", done.stdout)[-1]) >= least, done.stdout
