"""`tests/run`."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent.parent
TIERS = sorted(path.name for path in (ROOT / "tests" / "tiers").iterdir())


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([ROOT / "tests" / "run", *arguments], capture_output=True, text=True, check=False)


@pytest.mark.parametrize("name", ["nope", "../run", ".hidden", "a/b"])
def test_an_unknown_tier_is_refused_with_those_that_there_are(name: str) -> None:
    done = run(name)
    assert done.returncode == 2
    assert name in done.stderr
    assert all(tier in done.stderr for tier in TIERS)


def test_no_tier_is_an_error_that_lists_them() -> None:
    done = run()
    assert done.returncode == 1
    assert all(tier in done.stdout for tier in TIERS)


@pytest.mark.parametrize("name", TIERS)
def test_every_tier_can_be_run_and_tells_its_budget(name: str) -> None:
    file = ROOT / "tests" / "tiers" / name
    assert os.access(file, os.X_OK)
    assert "budget" in file.read_text().splitlines()[1]
