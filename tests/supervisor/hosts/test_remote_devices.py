"""Devices of other hosts, and hosts of another version."""

from __future__ import annotations

import os
import re
import threading
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace

import pytest
from far_site import LEASE, Far, eventually

from trivet import __version__
from trivet.config import Settings
from trivet.contract import DeviceInfo
from trivet.errors import Unavailable
from trivet.optional_contract import DeviceUsage, DeviceUser
from trivet_supervisor.device_users import process_name
from trivet_supervisor.hosts import agent_calls, host_agent, host_link, remote_launcher
from trivet_supervisor.hosts.host_agent import HostAgent
from trivet_supervisor.hosts.remote_launcher import RemoteLauncher


def test_a_host_of_another_version_starts_nothing_until_it_has_ours_and_its_engines_are_seen(
    far: Far, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(host_link, "GREET_INTERVAL_S", 0.05)
    running = far.start()
    monkeypatch.setattr(host_agent, "__version__", "99.1")
    told = f"host b has Trivet 99.1 and this supervisor is Trivet {__version__}; install {__version__} there"
    eventually(lambda: far.launcher._link("b").refusal == told)
    with pytest.raises(Unavailable, match=re.escape(told)):
        far.start("another")
    (device,) = far.launcher.devices("null", 5.0)
    assert (device.host, device.uid, device.unusable_because) == ("b", "b/?", told)
    assert [order.lease for order in far.launcher.orders()] == [LEASE]
    assert far.launcher.adopt(running.identity, LEASE, far.log) is not None
    running.kill()
    assert eventually(running.exit_code) == -9
    monkeypatch.setattr(host_agent, "__version__", __version__)
    eventually(lambda: not far.launcher._link("b").refusal)
    far.start("another").kill()


def test_an_engine_gets_the_devices_as_its_own_host_names_them(
    far: Far, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[list[DeviceInfo]] = []
    found = DeviceInfo("null", 0, "GPU-1", "a GPU", "x", 9, 9, frozenset())
    backend = SimpleNamespace(name="null", probe=lambda timeout_s: [found])
    backend.launch_env = lambda devices: asked.append(list(devices)) or {"VISIBLE": devices[0].uid}
    plugins = SimpleNamespace(backends={"null": backend}, backend=lambda name: backend)
    monkeypatch.setattr(far.wire.agent, "_plugins", plugins)
    handle = far.start(device_uids=["GPU-1"])
    # An environment is empty while its process is executed.
    environ = eventually(Path(f"/proc/{handle.identity.pid}/environ").read_bytes).split(b"\0")
    assert b"VISIBLE=GPU-1" in environ
    assert asked == [[found]]
    with pytest.raises(Unavailable, match="has no device GPU-2 any more"):
        far.start("another", device_uids=["GPU-2"])


def test_devices_carry_the_name_of_their_host(far: Far) -> None:
    (device,) = far.launcher.devices("null", 5.0)
    assert (device.host, device.uid, device.kind) == ("b", "b/null", "null")
    far.wire.is_cut = True
    (silent,) = eventually(
        lambda: [d for d in far.launcher.devices("null", 5.0) if "has not answered for" in d.unusable_because]
    )
    assert (silent.host, silent.uid) == ("b", "b/?")
    far.wire.is_cut = False
    (unknown,) = eventually(
        lambda: [d for d in far.launcher.devices("no", 5.0) if "not answered" not in d.unusable_because]
    )
    assert unknown.unusable_because == "host b: backend no is not installed there"


def test_hosts_are_asked_at_once_and_one_that_hangs_holds_up_nobody(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(remote_launcher, "PROBE_GRACE_S", 0.5)
    agent = HostAgent("b", "127.0.0.1", Settings(home=str(tmp_path)))
    agent.answer(agent_calls.encode(agent_calls.Probe("null", 5.0)))  # its plugins are loaded
    hang, all_others = threading.Event(), threading.Barrier(9)
    here = Settings(home=str(tmp_path / "here"))

    class Many:
        def names(self) -> Mapping[str, str]:
            return {f"h{n}": "" for n in range(10)}

        def trouble(self) -> str:
            return ""

        def call(self, host: str, message: bytes, timeout_s: float) -> bytes:
            if isinstance(agent_calls.decode_call(message), agent_calls.Probe):
                hang.wait() if host == "h3" else all_others.wait(30)
            return agent.answer(message)

    launcher = RemoteLauncher("far", Many(), here.paths)
    found = {device.host: device for device in launcher.devices("null", 3.0)}
    assert found.pop("h3").unusable_because == "host h3 gave no answer in time"
    assert len(found) == 9
    assert all(not device.unusable_because for device in found.values())
    hang.set()
    launcher.close()


def test_users_of_far_devices_carry_their_names(far: Far, monkeypatch: pytest.MonkeyPatch) -> None:
    usage = {"GPU-1": DeviceUsage(5, 9, users=(DeviceUser(os.getpid(), 5), DeviceUser(2**22 + 1)))}
    backend = SimpleNamespace(probe=lambda timeout_s: [], usage=lambda: usage)
    monkeypatch.setattr(far.wire.agent, "_plugins", SimpleNamespace(backends={"null": backend}))
    (told,) = far.launcher.usage("null", 5.0).items()
    assert told[0] == "b/GPU-1"
    assert told[1].users is not None
    assert [user.name for user in told[1].users] == [process_name(os.getpid()), "?"]
    assert far.launcher.usage("no", 5.0) == {}
