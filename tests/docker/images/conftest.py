"""Tests of the tier `images`: they need its tools, and some of them root."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).parent))  # built_image

# Plain `pytest` has none of its tools.
collect_ignore_glob = [] if "TRIVET_IMAGES_CACHE" in os.environ else ["test_*.py"]

ROOT = Path(__file__).parent.parent.parent.parent


@pytest.fixture(scope="session")
def checkout() -> Path:
    return ROOT


@pytest.fixture(scope="session")
def cache() -> Path:
    """What the tier has fetched, and keeps."""
    return Path(os.environ["TRIVET_IMAGES_CACHE"])
