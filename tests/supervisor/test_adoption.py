"""A supervisor that comes after another takes over its engines."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from trivet.endpoints import local_endpoints
from trivet.messages import Phase
from trivet_registry.deployments_store import stop_deployment
from trivet_registry.instance_state import InstanceState
from trivet_registry.instances_store import update_instance
from trivet_supervisor.engine_logs import first_crash_file

if TYPE_CHECKING:
    from conftest import Site


def test_a_new_supervisor_takes_over_living_engines_untouched(site: Site) -> None:
    site.make_ready()
    before = site.only()
    site.start_supervisor()
    site.settle()
    assert (site.only().state, site.only().pid, site.only().lease) == ("ready", before.pid, before.lease)
    pids = [each["pid"] for each in site.only().processes or []]
    assert pids == [before.pid, site.process.processes()[1].pid], "the engine and its rank"
    assert site.process.signals == []
    assert site.wire.sent == []
    assert len(site.launcher.processes) == 1
    site.keep_alive(10)
    assert site.states() == ["ready"]


@pytest.mark.parametrize("phase", [None, Phase.LOADING, Phase.WARMING])
def test_an_engine_that_comes_up_meanwhile_is_adopted_too(site: Site, phase: Phase | None) -> None:
    site.launch()
    site.settle()
    if phase is not None:
        site.say(phase)
    site.start_supervisor()
    site.settle()
    site.say(Phase.READY)
    assert site.states() == ["ready"]


@pytest.mark.parametrize("phase", [None, Phase.LOADING, Phase.WARMING])
def test_what_came_up_while_nobody_watched_is_heard_before_it_is_judged(
    site: Site, phase: Phase | None
) -> None:
    """The row tells of a state whose deadline has long passed; the engine has not stood still for it."""
    site.launch()
    site.settle()
    if phase is not None:
        site.say(phase)
    site.clock.advance(3600)
    site.start_supervisor()
    site.settle()
    site.say(Phase.READY)
    assert site.states() == ["ready"]
    assert site.process.signals == []


def test_what_never_came_up_and_is_silent_is_given_up_by_the_next_supervisor(site: Site) -> None:
    site.launch()
    site.settle()
    site.clock.advance(3600)
    site.start_supervisor()
    site.settle()
    assert site.states() == ["starting"]
    site.wait(10)
    assert site.launcher.processes[0].signals == ["kill"]


def test_an_engine_that_died_unwatched_is_replaced_with_a_reason(site: Site) -> None:
    site.make_ready()
    site.process.code = -9
    site.launcher.processes.clear()
    site.start_supervisor()
    site.settle()
    assert "while no supervisor was there" in site.only().reason
    site.wait(1)
    assert site.states() == ["starting"]
    assert site.only().boot_failures == 0


def test_the_first_crash_is_one_that_was_seen(site: Site) -> None:
    """The log of an engine that served until the host was started anew tells of no crash."""
    site.make_ready()
    served = Path(site.only().log_file or "")
    served.parent.mkdir(parents=True)
    served.write_text("served well")
    site.launcher.processes.clear()
    site.start_supervisor()
    site.settle()
    assert not first_crash_file(served).exists()
    site.wait(1)
    crashed = Path(site.only().log_file or "")
    crashed.write_text("segmentation fault")
    site.process.code = -11
    site.settle()
    assert first_crash_file(served).read_text() == "segmentation fault"
    assert "SIGSEGV" in (site.only().first_failure or "")


def test_an_engine_whose_pid_was_never_written_down_is_found_by_its_lease(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    site.launch()

    def die(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(site.reconciler.fleet._arrivals, "_follow", die)
    with pytest.raises(KeyboardInterrupt):
        site.settle()
    assert (site.only().state, site.only().pid) == ("starting", None)
    site.start_supervisor()
    site.settle()
    site.say(Phase.READY)
    assert len(site.launcher.processes) == 1
    assert (site.only().state, site.only().pid) == ("ready", 1001)


def test_an_engine_is_followed_in_the_folder_where_it_was_started(site: Site) -> None:
    site.make_ready()
    assert site.wire.endpoints == {site.only().id: local_endpoints(site.settings.paths.run, site.only().id)}
    site.change(update_instance, site.only().id, run_dir="/another/home/run")
    site.start_supervisor()
    site.settle()
    assert site.wire.endpoints == {site.only().id: local_endpoints("/another/home/run", site.only().id)}


def test_a_lost_engine_is_killed_by_the_next_supervisor(site: Site) -> None:
    site.make_ready()
    site.process.obeys = ()
    site.wait(9)
    assert site.states() == ["lost"]
    site.start_supervisor()
    site.process.obeys = ("kill",)
    site.wait(2)
    assert site.launcher.processes[0].code == -9
    assert site.states() == ["starting"]


def test_a_drain_goes_on_under_a_new_supervisor(site: Site) -> None:
    site.make_ready()
    site.change(stop_deployment, "chat")
    site.settle()
    site.start_supervisor()
    site.settle()
    site.process.code = 0
    site.settle()
    assert site.states() == ["stopped"]


def test_a_drains_deadline_goes_on_under_a_new_supervisor(site: Site) -> None:
    site.make_ready()
    site.change(stop_deployment, "chat", drain_timeout_s=20)
    site.settle()
    for _ in range(3):  # one that dies every 7 s must not make it last for ever
        site.wait(7)
        site.say(Phase.DRAINING)
        site.start_supervisor()
        site.settle()
    assert site.states() == ["draining"], "20 s and the grace of 5"
    site.wait(5)
    assert site.states() == ["stopping"]


def test_after_a_reboot_what_was_wanted_runs_again(site: Site) -> None:
    """Every process is gone, and the host's clock since boot begins anew."""
    site.make_ready(replicas=2)
    site.launch("stopped")
    site.settle()
    site.change(stop_deployment, "stopped")
    site.settle()
    site.launcher.processes.clear()
    site.clock.now_s = 3.0
    site.start_supervisor()
    site.settle()
    assert all("host was started anew" in i.reason for i in site.instances(InstanceState.PENDING))
    site.wait(1)
    assert sorted(site.states()) == ["starting", "starting", "stopped"]
    for instance in site.instances(InstanceState.STARTING):
        site.say(Phase.READY, instance)
    site.keep_alive(10)
    assert sorted(site.states()) == ["ready", "ready", "stopped"]


def test_one_that_was_told_to_stop_and_went_unwatched_is_stopped_when_its_device_has_the_memory_back(
    site: Site,
) -> None:
    site.make_ready()
    site.change(stop_deployment, "chat", drain_timeout_s=0)
    site.settle()
    assert site.states() == ["stopping"]
    site.process.code = 0
    site.holders = frozenset({1001})
    site.start_supervisor()
    site.settle()
    assert site.states() == ["stopping"]
    assert site.only().reason == "its process is gone; waits until host has its memory back"
    site.holders = frozenset()
    site.settle()
    assert (site.only().state, site.only().reason, site.only().pid) == ("stopped", "stopped", None)
