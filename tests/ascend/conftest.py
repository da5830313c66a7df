"""Tests that need torch-npu over the fake CANN; `tests/run ascend` makes both and runs them."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

HAS_TORCH_NPU = importlib.util.find_spec("torch_npu") is not None


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Elsewhere they are skipped with the command that runs them."""
    if HAS_TORCH_NPU:
        return
    here = Path(__file__).parent
    for item in items:
        if item.path.is_relative_to(here):
            item.add_marker(pytest.mark.skip(reason="needs torch-npu over a fake CANN: tests/run ascend"))
