"""The supervisor's table of devices, where a plugin's probe misbehaves."""

from __future__ import annotations

import os
import threading
from dataclasses import replace
from typing import Any, cast

import pytest

from trivet.contract import DeviceInfo
from trivet.optional_contract import DeviceUsage, DeviceUser
from trivet_registry.tables import Instance
from trivet_supervisor.device_users import process_name, users_of
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


class TellsUsers(Sound):
    """Its tool tells who has memory: `pids`; None: it does not."""

    pids: tuple[int, ...] | None = (17,)

    def usage(self) -> dict[str, DeviceUsage]:
        users = None if self.pids is None else tuple(DeviceUser(pid) for pid in self.pids)
        return {"host": DeviceUsage(1, 1, users=users)}


def test_who_still_has_memory_is_asked_anew_and_nobody_waits_for_the_answer() -> None:
    times = iter(float(n) for n in range(100))
    backend = TellsUsers()
    table = DeviceTable({"cpu": cast(Any, backend)}, clock=lambda: next(times))
    table.all()
    table.usage()
    since_s = next(times)
    assert table.holders("cpu", ["host"], {17}, since_s) is None
    assert table.is_asked.is_set()
    table.usage()
    assert table.holders("cpu", ["host"], {17, 18}, since_s) == {17}
    backend.pids = ()
    since_s = next(times)
    table.usage()
    assert table.holders("cpu", ["host"], {17}, since_s) == frozenset()


def test_a_tool_that_names_no_processes_holds_nobody_up_once_it_has_answered() -> None:
    backend = TellsUsers()
    backend.pids = None
    table = DeviceTable({"cpu": cast(Any, backend)})
    assert table.holders("cpu", ["host"], {17}, 0.0) is None, "it was never asked"
    assert table.is_asked.is_set()
    table.all()
    table.usage()
    assert table.holders("cpu", ["host"], {17}, 1e12) == frozenset()


def test_a_backend_without_a_tool_holds_nobody_up() -> None:
    table = DeviceTable({"mute": cast(Any, Sound())})
    assert table.holders("mute", ["host"], {17}, 1e12) == frozenset()
    assert table.holders("gone", ["host"], {17}, 1e12) == frozenset()
    assert not table.is_asked.is_set()


@pytest.mark.parametrize("answer", [{}, OSError("its tool is gone")])
def test_a_tool_that_fails_has_not_said_that_the_memory_is_back(
    monkeypatch: pytest.MonkeyPatch, answer: Any
) -> None:
    def fail() -> dict[str, DeviceUsage]:
        if isinstance(answer, Exception):
            raise answer
        return cast(dict[str, DeviceUsage], answer)

    backend = TellsUsers()
    table = DeviceTable({"cpu": cast(Any, backend)})
    table.all()
    table.usage()
    with monkeypatch.context() as broken:
        broken.setattr(backend, "usage", fail)
        table.usage()
    assert table.holders("cpu", ["host"], {17}, 0.0) is None
    table.usage()
    assert table.holders("cpu", ["host"], {17}, 0.0) == {17}


def test_users_of_a_device_are_ours_by_rank_or_strangers() -> None:
    ours = Instance(
        id="ab", pid=17, processes=[{"pid": 17, "start_time": 1.0}, {"pid": 18, "start_time": 1.0}]
    )
    users = (DeviceUser(18, 5), DeviceUser(os.getpid(), None))
    told = {("cuda", "gpu0"): DeviceUsage(1, 1, users=users), ("cpu", "host"): DeviceUsage(1, 1)}
    assert users_of(told, [ours], []) == {
        ("cuda", "gpu0"): [
            {"pid": 18, "name": process_name(18), "used_bytes": 5, "instance": "ab"},
            {"pid": os.getpid(), "name": process_name(os.getpid()), "used_bytes": None, "instance": None},
        ]
    }
    assert process_name(os.getpid())


def test_a_pid_is_of_its_own_host() -> None:
    ours, other = Instance(id="ab", pid=17), Instance(id="cd", pid=17, host="b")
    told = {
        ("cpu", "b/host"): DeviceUsage(1, 1, users=(DeviceUser(17, name="serve"), DeviceUser(os.getpid())))
    }
    users = users_of(told, [other, ours], [replace(GOOD, uid="b/host", host="b")])[("cpu", "b/host")]
    assert [user["instance"] for user in users] == ["cd", None]
    assert [user["name"] for user in users] == ["serve", ""], (
        "the names of this host's processes are not theirs"
    )


class Elsewhere:
    """A launcher with host b; what its devices do is not known until `told` says it."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.told: dict[str, DeviceUsage] = {}

    def hosts(self) -> dict[str, str]:
        return {"b": ""}

    def devices(self, backend: str, timeout_s: float) -> list[DeviceInfo]:
        self.asked.append(backend)
        return [replace(GOOD, uid="b/host", host="b")]

    def usage(self, backend: str, timeout_s: float) -> dict[str, DeviceUsage]:
        return self.told


def test_a_launcher_with_hosts_is_asked_for_theirs_and_this_host_is_not_probed() -> None:
    elsewhere = Elsewhere()
    table = DeviceTable({"faulty": cast(Any, Faulty())}, elsewhere=elsewhere)
    assert ([device.uid for device in table.all()], elsewhere.asked) == (["b/host"], ["faulty"])
    assert table.usage() == {}
    assert table.holders("faulty", ["b/host"], [1], 0.0) == frozenset(), "nobody tells: it is not waited for"


def test_of_a_host_that_does_not_tell_it_is_not_known_whether_the_memory_is_back() -> None:
    elsewhere = Elsewhere()
    table = DeviceTable({"cpu": cast(Any, TellsUsers())}, elsewhere=elsewhere)
    table.all()
    table.usage()
    assert table.holders("cpu", ["b/host"], [17], 0.0) is None
    elsewhere.told = {"b/host": DeviceUsage(1, 1, users=(DeviceUser(17),))}
    assert table.usage() == {("cpu", "b/host"): elsewhere.told["b/host"]}
    assert table.holders("cpu", ["b/host"], [17], 0.0) == {17}


@pytest.mark.parametrize("host", ["..", "a/b", "", "a b", "-x", "x" * 64])
def test_a_host_whose_name_cannot_be_told_apart_has_no_usable_device(host: str) -> None:
    elsewhere = Elsewhere()
    elsewhere.devices = lambda *_: [replace(GOOD, uid=f"{host}/host", host=host)]  # type: ignore[method-assign]
    (device,) = DeviceTable({"cpu": cast(Any, Sound())}, elsewhere=elsewhere).all()
    assert "a host's name is up to 63 letters" in (device.unusable_because or "")
