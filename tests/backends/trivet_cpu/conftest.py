"""Levels of the kernels below this CPU's own are built and tested by `tests/run kernels`."""

from __future__ import annotations

import pytest

from trivet_cpu.host import Host
from trivet_cpu.kernel_build import levels_of


@pytest.hookimpl(tryfirst=True)  # before `-m` is applied
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The fixture `kernels` has a parameter a level; a library takes 10 s to build."""
    lower = levels_of(Host().arch())[1:]
    for item in items:
        callspec = getattr(item, "callspec", None)
        if callspec is not None and callspec.params.get("kernels") in lower:
            item.add_marker("compiles")
