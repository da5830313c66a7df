"""The supervisor's table of devices, where a plugin's probe misbehaves."""

from __future__ import annotations

from typing import Any

from trivet.contract import DeviceInfo
from trivet_supervisor.devices import DeviceTable

GOOD = DeviceInfo("cpu", 0, "host", "a CPU", "x", 1, 1, frozenset())


class Sound:
    name = "cpu"

    def probe(self, timeout_s: float) -> list[DeviceInfo]:
        return [GOOD]


class Faulty:
    name = "faulty"

    def probe(self, timeout_s: float) -> list[DeviceInfo]:
        raise OSError("no driver")


def test_a_probe_that_raises_costs_only_its_own_devices() -> None:
    backends: dict[str, Any] = {"faulty": Faulty(), "cpu": Sound()}
    faulty, good = DeviceTable(backends).all()
    assert good == GOOD
    assert (faulty.kind, faulty.unusable_because) == (
        "faulty",
        "backend faulty is faulty: probe raised OSError: no driver",
    )
