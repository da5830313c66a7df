"""The committed manifest against the wheels of torch-npu, of which nothing is installed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from trivet_ascend_emulated.operators import MANIFEST, schemas

RELEASES: list[str] = json.loads(MANIFEST.read_text())["wheels"]
WITHOUT_SHAPE_FUNCTION = ["pack_int4"]


@pytest.fixture(scope="module", params=RELEASES)
def findings(request: pytest.FixtureRequest) -> dict[str, Any]:
    folder = Path(os.environ["TRIVET_NPU_WHEELS"])
    (wheel,) = folder.glob(f"torch_npu-{request.param}-*.whl")
    # Without the installed torch-npu: its name is taken by a few lines of ours.
    path = os.environ["PYTHONPATH"].split(os.pathsep)
    env = os.environ | {"PYTHONPATH": os.pathsep.join(p for p in path if not Path(p, "torch_npu").is_dir())}
    done = subprocess.run(
        [sys.executable, str(Path(__file__).with_name("wheel_check.py")), str(wheel)],
        env=env,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def test_the_wheel_has_every_operation_with_the_schema_of_the_manifest(findings: dict[str, Any]) -> None:
    assert findings["schemas"] == schemas()


def test_the_wheels_shape_functions_give_what_the_twins_give(findings: dict[str, Any]) -> None:
    assert findings["wrong"] == []


def test_only_operations_known_for_it_have_no_shape_function(findings: dict[str, Any]) -> None:
    assert findings["without_shape_function"] == WITHOUT_SHAPE_FUNCTION
