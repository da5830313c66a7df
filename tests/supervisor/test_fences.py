"""What was given up though nobody knows that it has ended: taken back, or ended, when its host answers."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING

import pytest
from fake_launcher import LISTENS, SILENCE
from sqlalchemy import update

from trivet.errors import DoesNotFit
from trivet.messages import Phase
from trivet_registry.deployments_store import stop_deployment
from trivet_registry.fences_store import list_fences
from trivet_registry.instances_store import update_instance
from trivet_registry.tables import Fence, utc_now
from trivet_supervisor.orphans import end_orphans
from trivet_supervisor.placement import NoRoom

if TYPE_CHECKING:
    from conftest import Site


def cut(site: Site) -> None:
    """Host b answers nobody, and its first engine is silent for so long that it is given up."""
    site.launcher.processes[0].silence = SILENCE
    site.launcher.silent.add("b")
    site.wait(20)


def mend(site: Site, seconds: float = 3) -> None:
    site.launcher.processes[0].silence = ""
    site.launcher.silent.clear()
    site.wait(seconds)


def fences(site: Site) -> list[Fence]:
    with site.database.reading() as session:
        return list(list_fences(session))


def no_room(site: Site) -> None:
    site.places.refuses = NoRoom("it needs 3 GiB and 1 GiB is free")


def test_a_fence_is_written_with_the_end_and_removed_when_its_host_says_that_it_is_gone(far: Site) -> None:
    far.places.host = "c"
    lease = far.only().lease
    cut(far)
    (fence,) = fences(far)
    assert (fence.lease, fence.host, fence.pid, fence.why) == (lease, "b", 1001, SILENCE)
    assert far.launcher.discarded == [], "what it had claimed stays claimed"
    far.launcher.processes[0].code = 0
    mend(far)
    assert fences(far) == []
    assert far.launcher.discarded == [lease]
    assert any("host b answers again: pid 1001 (chat, given up" in event.reason for event in far.events())


def test_it_is_ended_once_its_successor_was_started(far: Site) -> None:
    far.places.host = "c"
    cut(far)
    first, second = far.launcher.processes
    assert (first.signals, second.order.host) == (["abandon"], "c"), "what may serve again is not killed"
    mend(far)
    assert (first.signals, second.signals) == (["abandon", "kill"], [])
    assert (fences(far), far.launcher.discarded) == ([], [first.order.lease])


def test_another_supervisor_goes_on_with_it(far: Site) -> None:
    far.places.host = "c"
    cut(far)
    far.start_supervisor()
    far.wait(5)
    assert len(fences(far)) == 1
    mend(far)
    assert (far.launcher.processes[0].signals[-1], fences(far)) == ("kill", [])


def test_where_nothing_took_its_place_it_is_taken_back(far: Site) -> None:
    no_room(far)
    before = far.only()
    cut(far)
    assert (far.states(), far.only().pid) == (["pending"], None)
    mend(far)
    after = far.only()
    assert (after.state, after.pid, after.lease) == ("starting", before.pid, before.lease)
    assert (after.host, after.device_uids, after.plan) == ("b", ["b/host"], before.plan)
    assert far.wire.endpoints[after.id] == LISTENS
    far.say(Phase.READY)
    assert (far.states(), fences(far)) == (["ready"], [])
    (process,) = far.launcher.processes
    assert (process.signals, far.launcher.discarded) == (["abandon"], [])


def test_it_is_taken_back_also_by_the_next_supervisor_and_after_a_start_that_failed(far: Site) -> None:
    far.places.host = "c"
    far.launcher.breaks_with = "python3 is missing"
    cut(far)
    assert sorted(fence.host for fence in fences(far)) == ["b"], "host c has said that nothing runs there"
    far.start_supervisor()
    far.launcher.breaks_with = None
    no_room(far)
    mend(far, 40)
    assert (far.states(), far.only().pid, far.only().host) == (["starting"], 1001, "b")


def test_it_waits_for_a_successor_of_which_nobody_knows_yet_whether_it_was_started(far: Site) -> None:
    far.places.host = "c"
    far.launcher.held.clear()  # the start on c waits
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("trivet_supervisor.arrivals.FAR_PATIENCE_S", 0.0)
        patch.setattr("trivet_supervisor.fences.PATIENCE_S", 0.0)
        cut(far)
        assert (far.states(), far.only().pid) == (["starting"], None)
        mend(far)
    (first,) = far.launcher.processes
    assert first.signals == ["abandon"]
    far.launcher.held.set()
    far.wait(5)
    assert (far.launcher.processes[0].signals, len(far.launcher.processes)) == (["abandon", "kill"], 2)


def test_it_is_taken_back_where_the_start_of_its_successor_fails_while_its_host_answers(far: Site) -> None:
    far.places.host = "c"
    far.launcher.held.clear()  # the start on c waits
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("trivet_supervisor.arrivals.FAR_PATIENCE_S", 0.0)
        patch.setattr("trivet_supervisor.fences.PATIENCE_S", 0.0)
        cut(far)
        mend(far)
        (call,) = [one.call for one in far.reconciler.fleet.fences._asked.values()]
        (start,) = [start.call for start in far.reconciler.fleet._arrivals._starts.values()]
    no_room(far)
    far.launcher.breaks_with = "python3 is missing"
    far.launcher.held.set()
    assert call is not None
    assert not call.is_under_way(60)
    assert not start.is_under_way(60)
    far.wait(40)
    assert (far.states(), far.only().pid) == (["starting"], 1001)
    assert far.launcher.processes[0].signals == ["abandon"]


def test_nothing_is_started_on_a_host_that_is_about_to_say_that_it_lives(far: Site) -> None:
    """The host is back, and a place on it was found before its engine was asked for."""
    no_room(far)
    cut(far)
    far.places.refuses = None
    far.wait(10)
    assert (far.states(), len(far.launcher.processes)) == (["pending"], 1)
    assert "became of the engine that was given up there" in far.only().reason
    mend(far)
    assert (far.states(), len(far.launcher.processes)) == (["starting"], 1)


def test_what_is_wanted_no_more_is_ended_when_its_host_is_back(far: Site) -> None:
    no_room(far)
    cut(far)
    far.change(stop_deployment, "chat", 0.0)
    far.wait(1)
    assert far.states() == ["stopped"]
    mend(far)
    assert (far.launcher.processes[0].signals[-1], fences(far)) == ("kill", [])


def test_what_was_told_to_stop_is_never_taken_back(far: Site) -> None:
    far.process.silence, far.process.obeys = SILENCE, ()
    far.launcher.silent.add("b")
    far.change(stop_deployment, "chat", 0.0)
    far.wait(20)
    assert far.states() == ["stopped"]
    assert far.only().reason == f"told to stop; nobody knows whether it has ended: {SILENCE}"
    (fence,) = fences(far)
    assert fence.engine is None
    far.process.obeys = ("kill",)
    mend(far, 10)
    assert (far.states(), fences(far)) == (["stopped"], [])


def test_a_process_that_survives_its_kill_stays_fenced(far: Site) -> None:
    far.places.host = "c"
    cut(far)
    far.launcher.processes[0].obeys = ()
    mend(far, 20)
    assert len(fences(far)) == 1
    assert far.launcher.processes[0].signals.count("kill") > 2
    far.launcher.processes[0].code = -9
    far.wait(2)
    assert fences(far) == []


def test_an_order_that_was_not_answered_may_have_been_carried_out_and_its_engine_goes_on(site: Site) -> None:
    site.places.host = "b"
    site.launcher.breaks_with, site.launcher.starts_all_the_same = "host b did not answer in 15 s", True
    site.launch()
    site.settle()
    site.launcher.breaks_with = None
    site.wait(3)
    (process,) = site.launcher.processes
    assert (site.states(), site.only().pid, process.signals) == (["starting"], 1001, [])
    assert fences(site) == []


def test_what_a_host_refuses_to_start_leaves_nothing(site: Site) -> None:
    site.places.host = "b"
    site.launcher.breaks_with = "python3 is missing"
    site.launch()
    site.settle()
    site.launcher.breaks_with = None
    site.wait(3)
    assert (site.states(), fences(site)) == (["starting"], [])
    assert not any("answers again" in event.reason for event in site.events())


def test_what_is_fenced_is_no_orphan(far: Site) -> None:
    no_room(far)
    cut(far)
    assert end_orphans(far.means) == 0
    assert far.process.signals == ["abandon"]


def test_here_nothing_is_ever_fenced(site: Site) -> None:
    site.launcher.breaks_with = "no more processes"
    site.launch()
    site.settle()
    assert fences(site) == []
    site.places.refuses = DoesNotFit("never")
    site.wait(2)
    assert site.launcher.discarded, "what it left is removed at once"


def test_one_of_which_nobody_can_say_where_it_is_can_be_stopped(site: Site) -> None:
    """Its supervisor died between the order and the answer, and then its host went."""
    site.places.host = "b"
    site.launch()
    site.settle()
    site.change(update_instance, site.only().id, pid=None, process_start_time=None)
    site.launcher.silent.add("b")
    site.start_supervisor()
    site.wait(2)
    site.change(stop_deployment, "chat", 0.0)
    site.wait(2)
    assert site.states() == ["stopping"]
    site.wait(30)
    assert site.states() == ["stopped"]
    assert "nobody knows whether it has ended: it is not known whether it runs: host b" in site.only().reason
    assert len(fences(site)) == 1
    site.launcher.silent.clear()
    site.wait(3)
    assert (site.process.signals, fences(site)) == (["kill"], [])


def test_a_host_that_is_gone_for_good_is_asked_no_more(far: Site) -> None:
    """Else no stop of the site would ever be confirmed again."""
    far.places.host = "c"
    cut(far)
    with far.database.session() as session:
        session.execute(update(Fence).values(since=utc_now() - timedelta(hours=23)))
    far.start_supervisor()
    far.launcher.processes[0].silence = ""  # `find` tells
    far.wait(3)
    assert len(fences(far)) == 1
    with far.database.session() as session:
        session.execute(update(Fence).values(since=utc_now() - timedelta(hours=25)))
    far.start_supervisor()
    far.wait(3)
    assert (fences(far), far.launcher.discarded) == ([], [])
    assert any(
        "is asked for no more: it is not known whether it runs" in event.reason for event in far.events()
    )
