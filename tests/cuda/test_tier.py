"""What this folder holds runs in its own tier; here stands why nothing of it was collected."""

from __future__ import annotations

import os
import re
import sys
from configparser import ConfigParser
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.version import Version


@pytest.mark.skipif("TRIVET_CUDA_TIER" not in os.environ, reason="needs Triton and minutes: tests/run cuda")
def test_triton_is_here() -> None:
    import triton

    assert triton.__version__


def test_the_package_admits_the_triton_that_is_tested_and_no_newer() -> None:
    """What a release of the compiler makes of a kernel nobody knows before the gate has looked."""
    root = Path(__file__).parents[2]
    tested = re.findall(r"^(?:OLDEST_)?TRITON=(\S+)", (root / "tests/tiers/cuda").read_text(), re.MULTILINE)
    newest, oldest = map(Version, tested)
    setup = ConfigParser()
    setup.read(root / "setup.cfg")
    wanted = map(Requirement, setup["options.extras_require"]["cuda"].split())
    (admitted,) = (each.specifier for each in wanted if each.name == "triton")
    assert admitted.contains(newest)
    assert admitted.contains(oldest)
    assert not admitted.contains(f"{newest.major}.{newest.minor + 1}.0")
    assert not admitted.contains(f"{oldest.major}.{oldest.minor - 1}.0")


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
