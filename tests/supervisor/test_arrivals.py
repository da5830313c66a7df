"""A launcher may wait for a host that is slow: the row is the state, and the others go on."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

import pytest
from fake_launcher import FakeProcess

from trivet.endpoints import Endpoints
from trivet.launching import CALL_LIMIT_S
from trivet.messages import Phase
from trivet_registry.deployments_store import stop_deployment
from trivet_registry.fences_store import list_fences
from trivet_registry.instances_store import update_instance
from trivet_supervisor import arrivals, fences

if TYPE_CHECKING:
    from conftest import Site


@pytest.fixture
def slow(site: Site, monkeypatch: pytest.MonkeyPatch) -> Site:
    """An engine here that is ready, and a start on host b that is not answered."""
    site.make_ready()
    monkeypatch.setattr(arrivals, "FAR_PATIENCE_S", 0.0)
    monkeypatch.setattr(fences, "PATIENCE_S", 0.0)
    site.launcher.held.clear()
    site.places.host = "b"
    site.launch("far")
    site.settle()
    yield site
    site.launcher.held.set()


@pytest.fixture
def sought(site: Site, monkeypatch: pytest.MonkeyPatch) -> Site:
    """An engine on host b, for which a new supervisor looks and is not answered."""
    site.places.host = "b"
    site.launch()
    site.settle()
    monkeypatch.setattr(arrivals, "FAR_PATIENCE_S", 0.0)
    monkeypatch.setattr(fences, "PATIENCE_S", 0.0)
    site.launcher.held.clear()
    site.start_supervisor()
    site.settle()
    yield site
    site.launcher.held.set()


def answered(site: Site) -> None:
    """Host b answers, and that has been taken."""
    site.launcher.held.set()
    for call in [start.call for start in site.reconciler.fleet._arrivals._starts.values()]:
        call.is_under_way(60)
    for call in [find.call for find in site.reconciler.fleet._arrivals._finds.values()]:
        call.is_under_way(60)
    site.settle()


def test_a_start_that_waits_is_starting_and_is_followed_once_it_is_answered(slow: Site) -> None:
    assert sorted(slow.states()) == ["ready", "starting"]
    assert len(slow.launcher.processes) == 1
    assert not slow.reconciler.fleet.has_news()
    slow.keep_alive(5)
    answered(slow)
    (far,) = [i for i in slow.instances() if i.host == "b"]
    assert (far.pid, far.state, len(slow.launcher.processes)) == (1002, "starting", 2)


def test_an_engine_that_falls_silent_meanwhile_is_given_up_in_time(slow: Site) -> None:
    slow.wait(15)
    assert any(event.to_state == "lost" and event.deployment == "chat" for event in slow.events())


def test_a_stop_is_obeyed_meanwhile_also_of_what_is_being_started(slow: Site) -> None:
    slow.change(stop_deployment, "chat", 0.0)
    slow.change(stop_deployment, "far", 0.0)
    slow.settle()
    assert slow.states() == ["stopping", "stopping"]
    answered(slow)
    slow.wait(5)
    assert slow.states() == ["stopped", "stopped"]
    assert [process.code for process in slow.launcher.processes] == [-15, -15]


def test_a_launcher_that_never_answers_is_given_up_and_what_it_starts_late_is_ended(slow: Site) -> None:
    (late,) = [start.call for start in slow.reconciler.fleet._arrivals._starts.values()]
    slow.places.host = ""
    slow.keep_alive(CALL_LIMIT_S + 3)
    assert any("its launcher has not answered for 30 s" in event.reason for event in slow.events())
    assert [process.order.host for process in slow.launcher.processes] == ["", ""], "it was started here"
    with slow.database.reading() as session:
        assert [fence.host for fence in list_fences(session)] == ["b"]
    slow.launcher.held.set()
    assert not late.is_under_way(60)
    (far,) = [process for process in slow.launcher.processes if process.order.host == "b"]
    assert far.signals == ["kill"]


def test_adoption_on_a_slow_host_holds_up_nobody(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    site.make_ready()
    site.places.host = "b"
    site.launch("far")
    site.settle()
    site.process.listens = Endpoints("tcp://10.0.0.2:1", "tcp://10.0.0.2:2", "tcp://10.0.0.2:3", "key")
    site.settle()
    site.say(Phase.READY, *[i for i in site.instances() if i.host == "b"])
    site.places.host = ""
    monkeypatch.setattr(arrivals, "FAR_PATIENCE_S", 0.0)
    site.launcher.held.clear()
    site.start_supervisor()
    site.settle()
    assert site.reconciler.fleet.num_followed == 1
    site.wait(60)  # of which nothing can be told is left as it is
    (far,) = [i for i in site.instances() if i.host == "b"]
    assert (far.state, far.reason) == ("ready", "its launcher has not said for 30 s where it is")
    answered(site)
    assert site.reconciler.fleet.num_followed == 2
    (far,) = [i for i in site.instances() if i.host == "b"]
    assert far.reason == "adopted pid 1002 on b, which is ready", "nothing is said that is over"
    site.say(Phase.READY, far)
    assert (far.pid, len([p for p in site.launcher.processes if p.order.host == "b"])) == (1002, 1)


def test_what_is_to_end_and_is_never_answered_for_is_given_up(sought: Site) -> None:
    sought.change(stop_deployment, "chat", 0.0)
    sought.wait(CALL_LIMIT_S)
    assert sought.states() == ["starting"], "it may be found, and drained"
    sought.wait(30)
    assert sought.states() == ["stopped"]
    assert "nobody knows whether it has ended" in (sought.only().reason or "")
    with sought.database.reading() as session:
        assert [fence.host for fence in list_fences(session)] == ["b"]
    sought.launcher.held.set()
    sought.settle()
    assert not sought.reconciler.fleet.has_news(), "nobody would ever take it"


def test_a_look_for_the_attempt_before_says_nothing_of_the_next(sought: Site) -> None:
    looks = sought.reconciler.fleet._arrivals
    before = looks._asked(sought.only())
    assert looks._asked(sought.only()) is before
    sought.change(update_instance, sought.only().id, lease="another")
    assert looks._asked(sought.only()) is not before


def test_a_supervisor_that_leaves_waits_a_moment_for_what_it_starts(slow: Site) -> None:
    threading.Timer(0.2, slow.launcher.held.set).start()
    slow.reconciler.fleet.await_starts(60)
    assert len(slow.launcher.processes) == 2, "else its successor finds none, and starts another"
    slow.launcher.held.clear()
    slow.launch("never")
    slow.settle()
    slow.reconciler.fleet.await_starts(0.1)
    assert len(slow.launcher.processes) == 2


def test_one_that_was_started_late_is_killed_until_it_has_ended(
    slow: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Stubborn(FakeProcess):
        def kill(self) -> None:
            super().kill()
            if len(self.signals) == 3:
                self.code = -9

    monkeypatch.setattr(arrivals, "REPEAT_KILL_S", 0.0)
    here = slow.launcher.processes[0]
    late = Stubborn(here.order, here.identity, obeys=())
    arrivals._end_late(late)
    assert late.signals == ["kill"] * 3
