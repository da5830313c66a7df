from __future__ import annotations

import shutil
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).parent))  # air_gap
from air_gap import AirGap


@pytest.fixture
def air_gap() -> Iterator[AirGap]:
    """A home of its own, and no network but loopback."""
    missing = [name for name in ("unshare", "nsenter", "ip") if shutil.which(name) is None]
    if missing:
        pytest.skip(f"{', '.join(missing)} are not here (packages util-linux and iproute2)")
    with tempfile.TemporaryDirectory(prefix="tv") as home:  # short: socket paths hold 107 bytes
        gap = AirGap(Path(home))
        if not gap.open():
            pytest.skip("this account may not make a network namespace")
        yield gap
        gap.close()
