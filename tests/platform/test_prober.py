"""`Prober`: a stranger's probe that raises, hangs or answers nonsense."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping

import pytest

from trivet.contract import DeviceInfo
from trivet.optional_contract import Advice, DeviceUsage
from trivet.prober import Prober

GOOD = DeviceInfo("good", 0, "uid", "a device", "x", 1, 1, frozenset())


class Stranger:
    """A backend whose probe is the test's."""

    name = "stranger"

    def __init__(self, probe: Callable[[], object], absent: Callable[[], object] = lambda: "no card") -> None:
        self._probe = probe
        self._absent = absent
        self.num_probes = 0

    def probe(self, timeout_s: float) -> object:
        self.num_probes += 1
        return self._probe()

    def absent_because(self) -> object:
        return self._absent()


@pytest.fixture
def let_go() -> Iterator[threading.Event]:
    """What hangs waits for this."""
    event = threading.Event()
    yield event
    event.set()


def _raise() -> object:
    raise OSError("no such driver")


def _exit() -> object:
    raise SystemExit(3)


@pytest.mark.parametrize(
    ("probe", "reason"),
    [
        (_raise, "probe raised OSError: no such driver"),
        (_exit, "probe raised SystemExit: 3"),
        (lambda: None, "probe returned None and not a list of DeviceInfo"),
        (lambda: ["gpu0"], "probe returned a list with a str and not a list of DeviceInfo"),
    ],
)
def test_a_probe_that_fails_is_an_unusable_device_that_names_the_backend(probe, reason) -> None:
    (device,) = Prober().probe("stranger", Stranger(probe), 1.0)
    assert (device.kind, device.unusable_because) == ("stranger", f"backend stranger is faulty: {reason}")


def test_a_probe_that_hangs_is_left_and_not_asked_again_until_it_returns(let_go: threading.Event) -> None:
    def hang() -> list[DeviceInfo]:
        let_go.wait()
        return [GOOD]

    prober, backend, before = Prober(grace_s=0.05), Stranger(hang), set(threading.enumerate())
    (device,) = prober.probe("stranger", backend, 0.0)
    assert device.unusable_because == ("backend stranger is faulty: probe gave no answer within 0.05 s")
    (device,) = prober.probe("stranger", backend, 0.0)
    assert "still hangs" in str(device.unusable_because)
    assert backend.num_probes == 1
    (hanging,) = [one for one in threading.enumerate() if one.name == "probe" and one not in before]
    let_go.set()
    hanging.join(10)
    assert Prober().probe("stranger", backend, 1.0) == [GOOD]
    assert prober.probe("stranger", backend, 1.0) == [GOOD]


def test_why_it_is_absent_is_contained_too() -> None:
    assert Prober().why_absent("stranger", Stranger(list), 1.0) == "no card"
    assert Prober().why_absent("stranger", Stranger(list, _raise), 1.0) == (
        "absent_because raised OSError: no such driver"
    )
    assert Prober().why_absent("stranger", Stranger(list, lambda: None), 1.0) == "no device found"


def test_advice_is_taken_where_it_is_offered_and_contained() -> None:
    class Advisor(Stranger):
        def __init__(self, advice: Callable[[], object]) -> None:
            super().__init__(list)
            self._advice = advice

        def advice(self, installed: Mapping[str, str]) -> object:
            assert installed == {"torch": "2.13.0"}
            return self._advice()

    installed = {"torch": "2.13.0"}
    line = Advice("fail", "the driver is old", "install a new one")
    assert Prober().advice("stranger", Stranger(list), installed, 1.0) == []
    assert Prober().advice("stranger", Advisor(lambda: [line, 3]), installed, 1.0) == [line]
    assert Prober().advice("stranger", Advisor(lambda: None), installed, 1.0) == []
    (failed,) = Prober().advice("stranger", Advisor(_raise), installed, 1.0)
    assert failed == Advice("warn", "advice raised OSError: no such driver")


def test_usage_is_taken_where_it_is_offered_and_contained() -> None:
    class Measured(Stranger):
        def __init__(self, usage: Callable[[], object]) -> None:
            super().__init__(list)
            self._usage = usage

        def usage(self) -> object:
            return self._usage()

    use = DeviceUsage(1, 2, 12, 37, 91.4)
    assert Prober().usage("stranger", Stranger(list), 1.0) == {}
    assert Prober().usage("stranger", Measured(lambda: {"uid": use, "other": 3}), 1.0) == {"uid": use}
    assert Prober().usage("stranger", Measured(_raise), 1.0) == {}
