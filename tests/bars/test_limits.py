"""The probe of the machine's limits builds and runs."""

from __future__ import annotations

import shutil

import pytest
from trivet_bars.limits import measure_limits


@pytest.mark.skipif(shutil.which("g++") is None, reason="there is no g++")
def test_the_machine_reads_memory() -> None:
    assert measure_limits(1).read_gb_per_s > 0.1
