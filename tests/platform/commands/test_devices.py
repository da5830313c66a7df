"""The table of `trivet devices`."""

from __future__ import annotations

import pytest

from trivet.commands.devices import usage_text
from trivet.contract import DeviceUsage


@pytest.mark.parametrize(
    ("usage", "text"),
    [
        (None, ""),
        (DeviceUsage(1, 2), ""),
        (DeviceUsage(1, 2, 0, 37, 91.4), "0 % 37 C 91.4 W"),
        (DeviceUsage(1, 2, temperature_c=40), "40 C"),
    ],
)
def test_of_use_only_what_is_known_is_said(usage: DeviceUsage | None, text: str) -> None:
    assert usage_text(usage) == text
