"""What this folder holds runs in its own tier; here stands why nothing of it was collected."""

from __future__ import annotations

import os

import pytest


@pytest.mark.skipif("TRIVET_CUDA_TIER" not in os.environ, reason="needs Triton and minutes: tests/run cuda")
def test_triton_is_here() -> None:
    import triton

    assert triton.__version__
