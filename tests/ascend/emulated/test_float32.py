"""The contract suite over the emulated NPU in float32, where greedy ids have to equal the reference's.

Plain pytest runs it in bfloat16 (tests/contract). In float32 attention is gathered, so block tables, masks,
rotation, order and memory are held to the last token.
"""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

SUITE = ["-p", "trivet.contract_suite.plugin", "--pyargs", "trivet.contract_suite.cases", "-q", "-rf"]
SUITE += ["-p", "no:cacheprovider", "--trivet-backend", "ascend-emulated", "--trivet-dtype", "f32"]


def test_the_suite_of_the_contract_passes_in_float32(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *SUITE], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout[-6000:]
    assert int(re.findall(r"(\d+) passed", done.stdout)[-1]) >= 140, done.stdout
