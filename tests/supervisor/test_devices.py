"""The supervisor's table of devices, where a plugin's probe misbehaves."""

from __future__ import annotations

import threading
from typing import Any, cast

from trivet.contract import DeviceInfo, DeviceUsage
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


def test_a_probe_that_hangs_holds_up_no_other_backend() -> None:
    is_asked, let_go = threading.Event(), threading.Event()

    class Hanging:
        name = "hanging"

        def probe(self, timeout_s: float) -> list[DeviceInfo]:
            is_asked.set()
            let_go.wait()
            return []

    sound = Sound()
    backends: dict[str, Any] = {"hanging": Hanging(), "cpu": sound}
    table = DeviceTable(backends)
    asking = threading.Thread(target=table.all)
    asking.start()
    assert is_asked.wait(10)
    try:
        assert list(table.of(cast(Any, sound))) == [GOOD]
        assert asking.is_alive()  # that answer did not wait for the other
    finally:
        let_go.set()
        asking.join(30)


class Telling(Sound):
    """Tells the use of its device."""

    def usage(self) -> dict[str, DeviceUsage]:
        return {"host": DeviceUsage(3, 10, temperature_c=40)}


class Choking(Sound):
    def usage(self) -> dict[str, DeviceUsage]:
        raise OSError("its tool is gone")


def test_use_is_told_by_backend_and_device_as_far_as_it_is_known() -> None:
    backends: dict[str, Any] = {"telling": Telling(), "sound": Sound(), "choking": Choking()}
    for name, backend in backends.items():
        backend.name = name
    table = DeviceTable(backends)
    assert table.usage() == {}, "nothing has been probed"
    table.all()
    assert table.usage() == {("telling", "host"): DeviceUsage(3, 10, temperature_c=40)}
