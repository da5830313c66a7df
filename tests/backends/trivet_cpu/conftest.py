"""Levels of the kernels below this CPU's own are built and tested by `tests/run kernels`."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from trivet_cpu.host import Host
from trivet_cpu.kernel_build import levels_of

sys.path.append(str(Path(__file__).parent))  # own_threads, shared_host


@pytest.hookimpl(tryfirst=True)  # before `-m` is applied
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The fixtures `kernels` and `library` have a parameter a level; one takes 10 s or more to build."""
    lower = levels_of(Host().arch())[1:]
    for item in items:
        callspec = getattr(item, "callspec", None)
        levels = [callspec.params.get(name) for name in ("kernels", "library")] if callspec else []
        if any(level in lower for level in levels):
            item.add_marker("compiles")
