"""What tests of other hosts share."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest


@pytest.fixture
def eventually() -> Callable[..., None]:
    """Wait until something is true, for at most a minute."""

    def wait(is_true: Callable[[], object], deadline_s: float = 60.0) -> None:
        deadline = time.monotonic() + deadline_s
        while not is_true():
            assert time.monotonic() < deadline, f"not within {deadline_s:g} s"
            time.sleep(0.02)

    return wait
