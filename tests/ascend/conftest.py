"""Tests of the tier `ascend`: over torch-npu on the fake CANN, and in `emulated` without torch-npu."""

from __future__ import annotations

import importlib.util
import os
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent
sys.path.append(str(HERE.parent / "backends/trivet_ascend/emulated"))
HAS_TORCH_NPU = importlib.util.find_spec("torch_npu") is not None
IS_TIER = "TRIVET_NPU_WHEELS" in os.environ


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Elsewhere they are skipped with the command that runs them."""
    for item in items:
        if not item.path.is_relative_to(HERE):
            continue
        if item.path.is_relative_to(HERE / "emulated"):
            if not IS_TIER or HAS_TORCH_NPU:  # the emulator defines what torch-npu would define
                item.add_marker(pytest.mark.skip(reason="takes a minute: tests/run ascend"))
        elif not HAS_TORCH_NPU:
            item.add_marker(pytest.mark.skip(reason="needs torch-npu over a fake CANN: tests/run ascend"))
