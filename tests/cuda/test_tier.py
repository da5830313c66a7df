"""What this folder holds runs in its own tier; here stands why nothing of it was collected."""

from __future__ import annotations

import os
import sys
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path

import pytest


@pytest.mark.skipif("TRIVET_CUDA_TIER" not in os.environ, reason="needs Triton and minutes: tests/run cuda")
def test_triton_is_here() -> None:
    import triton

    assert triton.__version__


def test_every_fault_of_the_tier_can_be_planted() -> None:
    """In the code and the test file as they are now; that each is found is seen in the tier."""
    spec = spec_from_file_location("cuda_mutants", Path(__file__).with_name("mutants.py"))
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules[spec.name] = module_from_spec(spec)
    spec.loader.exec_module(module)
    names = [mutant.name for mutant in module.MUTANTS]
    assert len(set(names)) == len(names)
    for mutant in module.MUTANTS:
        package, inner = mutant.place
        assert mutant.planted((module.PACKAGES[package] / inner).read_text())
        file, _, test = mutant.test.partition("::")
        name = test.partition("[")[0]
        assert f"def {name}(" in (module.ROOT / file).read_text() or not name, mutant.name
