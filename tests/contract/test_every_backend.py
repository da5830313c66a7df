"""Every case of the contract suite over every backend that is available here."""

from __future__ import annotations

import importlib
import pkgutil

import pytest

from trivet.contract_suite import cases
from trivet.contract_suite.subject import Candidate

MODULES = [
    importlib.import_module(f"{cases.__name__}.{info.name}") for info in pkgutil.iter_modules(cases.__path__)
]
CASES = {
    name: value for module in MODULES for name, value in vars(module).items() if name.startswith("test_")
}
FIXTURES = {name: value for module in MODULES for name, value in vars(module).items() if name == "launched"}
globals().update(CASES, **FIXTURES)


def test_a_backend_without_a_device_says_why(absent: Candidate) -> None:
    """Its skip stands for all of its cases."""
    assert absent.absent_because
    assert absent.backend.name in absent.absent_because
    pytest.skip(absent.absent_because)


def test_no_case_hides_another_of_the_same_name() -> None:
    names = [name for module in MODULES for name in vars(module) if name.startswith("test_")]
    assert len(names) == len(set(names)) == len(CASES)
