"""The process that is in a cluster for a site: asked, killed, begun anew. The cluster is made up."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from trivet import __version__
from trivet.config import Settings
from trivet.errors import ConfigError, Unavailable
from trivet.messages import LaunchOrder
from trivet_supervisor.hosts.agent_calls import HostSilent
from trivet_supervisor.hosts.over_ray import bridge_process, plugin
from trivet_supervisor.hosts.over_ray.hosts import RayHosts

BRIDGE = """
import os, sys, zmq
from trivet.errors import Unavailable
from trivet_supervisor.hosts.agent_way import AgentAddress
from trivet_supervisor.hosts.answering import Answering
from trivet_supervisor.hosts.over_ray.bridge import Bridge, end_with_parent
from trivet_supervisor.hosts.over_ray.calls import Host

class Cluster:
    def __init__(self):
        self.taken = {("a", "stale"), ("elsewhere", "other")}

    def keep_agents(self):
        if os.path.exists(GONE):
            return {}
        pid = str(os.getpid())
        return {
            "a": Host(AgentAddress(pid, 1, "k" * 40), "", {"GPU": 2.0}),
            "b": Host(trouble="Trivet is not installed there"),
        }

    def claim(self, claim):
        if len([host for host, _ in self.taken if host == claim.host]) > 2:
            raise Unavailable(f"Ray has not {claim.num_ranks} x {claim.share:g} {claim.resource} left")
        self.taken.add((claim.host, claim.lease))
        print("claimed", claim.host, claim.lease, claim.resource, claim.num_ranks, claim.share, flush=True)

    def release(self, host, lease):
        self.taken.discard((host, lease))
        print("released", host, lease, flush=True)

    def claims(self):
        return sorted(self.taken)

end_with_parent()
context = zmq.Context()
outside = context.socket(zmq.ROUTER)
outside.bind(sys.argv[-1])
Answering(context, outside, Bridge(Cluster()).answer, 4).run()
"""


class Ray:
    """Of a home."""

    def __init__(self, folder: Path) -> None:
        settings = Settings(home=str(folder))
        settings.paths.create()
        self.gone = folder / "gone"  # while it is there, no node lives
        self.paths = settings.paths
        self.hosts = self.new()

    def new(self) -> RayHosts:
        made = RayHosts("", self.paths)
        made._bridge._command = [sys.executable, "-c", f"GONE = {str(self.gone)!r}\n{BRIDGE}"]
        return made

    @property
    def told(self) -> str:
        return (self.paths.logs / "ray.log").read_text()


@pytest.fixture
def ray(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Ray]:
    monkeypatch.setattr(bridge_process, "INTERVAL_S", 0.05)
    monkeypatch.setattr(bridge_process, "RESTART_S", 0.05)
    monkeypatch.setattr(bridge_process, "find_spec", lambda name: True)
    made = Ray(tmp_path)
    yield made
    made.hosts.close()


def order(lease: str, num_devices: int = 1, **settings: str) -> LaunchOrder:
    return LaunchOrder(
        instance_id="i",
        lease=lease,
        model_path="m",
        served_model_name="m",
        backend="cuda",
        device_uids=[f"GPU-{n}" for n in range(num_devices)],
        settings=settings,
        run_dir="",
        version=__version__,
    )


Eventually = Callable[..., None]


def test_hosts_are_known_as_long_as_they_were_seen_also_to_the_next_one(
    ray: Ray, eventually: Eventually
) -> None:
    assert ray.hosts.names() == {}
    assert ray.hosts.trouble()
    eventually(lambda: ray.hosts.names().keys() == {"a", "b"})
    eventually(lambda: not ray.hosts.trouble())
    with pytest.raises(HostSilent, match="Trivet is not installed there"):
        ray.hosts.call("b", b"", 1.0)
    ray.gone.touch()
    eventually(lambda: "no node" in ray.hosts._hosts()["a"].trouble)
    assert ray.hosts.names().keys() == {"a", "b"}
    another = ray.new()
    assert another._hosts().keys() == {"a", "b"}, "they are written down"


def test_a_process_that_dies_is_started_again_and_ends_with_us(ray: Ray, eventually: Eventually) -> None:
    eventually(lambda: ray.hosts.names())
    first = ray.hosts.names()["a"]
    os.kill(int(first), signal.SIGKILL)
    eventually(lambda: ray.hosts.names()["a"] != first)
    second = ray.hosts.names()["a"]
    ray.hosts.close()
    eventually(lambda: not Path(f"/proc/{second}").exists())


def test_devices_are_claimed_by_rank_before_a_start(ray: Ray, eventually: Eventually) -> None:
    eventually(lambda: ray.hosts.names() and not ray.hosts.trouble())
    ray.hosts.take("a", order("one", num_devices=2))
    assert "claimed a one GPU 2 1.0" in ray.told
    ray.hosts.take("a", order("two", gpu_memory_utilization="0.4"))
    assert "claimed a two GPU 1 0.4" in ray.told
    with pytest.raises(Unavailable, match="Ray has not 1 x 1 GPU left"):
        ray.hosts.take("a", order("three"))
    ray.hosts.take("b", order("four"))
    assert "four" not in ray.told, "Ray counts no GPU there"


def test_a_claim_goes_when_its_host_says_that_the_engine_is_gone_and_comes_back_where_it_lives(
    ray: Ray, eventually: Eventually
) -> None:
    eventually(lambda: ray.hosts.names() and not ray.hosts.trouble())
    ray.hosts.take("a", order("new"))
    ray.hosts.settle("a", [order("lives")], asked_s=1e12)  # `new` is still being started
    eventually(lambda: "released a stale" in ray.told)
    eventually(lambda: "claimed a lives GPU 1 1.0" in ray.told)
    assert "released a new" not in ray.told
    assert "other" not in ray.told, "another host has said nothing"
    ray.hosts.taken("new")
    ray.hosts.settle("a", [order("lives")], asked_s=0.0)  # asked before the start was answered
    ray.hosts.settle("a", [order("lives")], asked_s=1e12)
    eventually(lambda: "released a new" in ray.told)
    assert "released a lives" not in ray.told


def test_without_ray_it_is_said_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plugin, "find_spec", lambda name: None)
    with pytest.raises(ConfigError, match=r"pip install 'trivet\[ray\]' here and on every host"):
        plugin.trivet_launcher(Settings(home=str(tmp_path), launcher="ray"))
    assert plugin.trivet_launcher(Settings(home=str(tmp_path))).name == "ray", "another launcher is chosen"


def test_the_launcher_is_offered_and_nothing_starts_until_it_is_asked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(plugin, "find_spec", lambda name: True)
    launcher = plugin.trivet_launcher(Settings(home=str(tmp_path), launcher="ray"))
    assert launcher.name == "ray"
    assert not list(tmp_path.iterdir())
