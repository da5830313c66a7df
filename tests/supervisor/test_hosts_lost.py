"""An engine whose host does not answer: asked itself first, given up only if it is silent, too."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from fake_launcher import LISTENS, SILENCE

from trivet.messages import Phase
from trivet_registry.deployments_store import stop_deployment
from trivet_registry.instances_store import update_instance

if TYPE_CHECKING:
    from conftest import Site


def test_an_engine_elsewhere_is_followed_where_its_launcher_says(site: Site) -> None:
    site.places.host = "b"
    site.launch()
    site.settle()
    assert (site.states(), site.only().host, site.wire.endpoints) == (["starting"], "b", {})
    assert site.process.order.host == "b"
    assert site.process.order.launch.device_uids == ["host"], "as that host names it"
    assert site.process.order.launch.orphan_timeout_s == 1800, "no supervisor may ever reach it again"
    assert site.only().device_uids == ["b/host"], "as the site names it"
    assert site.process.order.launch.peaks_dir == "", "which is a folder of this host"
    site.process.listens = LISTENS
    site.settle()
    assert site.wire.endpoints == {site.only().id: LISTENS}
    assert (site.only().endpoints or {})["server_key"] == "key", "web processes find it, too"


def test_a_new_supervisor_reaches_it_by_what_stands_in_the_registry(far: Site) -> None:
    far.process.listens = None  # its host does not answer yet
    far.wire.endpoints.clear()
    far.start_supervisor()
    far.settle()
    assert far.wire.endpoints == {far.only().id: LISTENS}
    assert far.states() == ["ready"]


def test_a_host_that_does_not_answer_ends_no_engine_that_does(far: Site) -> None:
    far.process.silence = SILENCE
    far.keep_alive(60)
    assert (far.states(), far.process.signals) == (["ready"], [])


def test_an_engine_that_is_silent_with_its_host_is_started_elsewhere_with_the_reason(far: Site) -> None:
    lost, now_s = far.process, far.clock.now_s
    far.say(Phase.READY, step_started_s=now_s, step_deadline_s=now_s + 60)  # which a host that is gone breaks
    lost.silence, lost.obeys = SILENCE, ()
    far.places.host = "c"
    far.wait(20)
    assert lost.signals == ["abandon"], "its host may be back before another has taken its place"
    assert far.launcher.processes[-1].order.host == "c"
    (event,) = [e for e in far.events() if e.to_state == "lost"]
    assert "did not answer when asked; host b has not answered for 9 s" in event.reason


def test_many_engines_of_a_host_that_is_gone_are_moved_at_once(site: Site) -> None:
    """That no more than three are given up a minute is for a busy host, which answers."""
    site.places.host = "b"
    site.launch(replicas=6)
    site.settle()
    for process in site.launcher.processes:
        process.listens = LISTENS
    site.settle()
    for instance in site.instances():
        site.say(Phase.READY, instance)
    for process in site.launcher.processes:
        process.silence, process.obeys = SILENCE, ()
    site.places.host = "c"
    site.wait(20)
    assert [p.order.host for p in site.launcher.processes] == ["b"] * 6 + ["c"] * 6


def test_one_that_was_told_to_stop_is_stopped_with_what_is_not_known(far: Site) -> None:
    far.process.silence, far.process.obeys = SILENCE, ()
    far.change(stop_deployment, "chat", 0.0)
    far.wait(20)
    assert far.states() == ["stopped"]
    assert SILENCE in far.only().reason
    assert far.process.signals[-1] == "abandon"


def test_where_no_host_answers_it_is_this_one_that_is_cut_off_and_nothing_is_given_up(far: Site) -> None:
    far.process.silence, far.process.nobody_answers = SILENCE, "no other host answers, either"
    far.wait(60)
    assert (far.states(), far.process.signals) == (["ready"], [])
    assert far.only().reason.endswith(f"{SILENCE}; kept for now: no other host answers, either")
    far.process.silence = far.process.nobody_answers = ""
    far.say(Phase.READY)
    assert (far.states(), len(far.launcher.processes)) == (["ready"], 1)


def test_what_was_started_where_nobody_answers_is_not_started_again(site: Site) -> None:
    """The supervisor died between the order and the answer to it."""
    site.places.host = "b"
    site.launch()
    site.settle()
    site.change(update_instance, site.only().id, pid=None, process_start_time=None)
    assert site.only().host == "b"
    site.launcher.silent.add("b")
    site.start_supervisor()
    site.wait(60)
    assert (site.states(), len(site.launcher.processes)) == (["starting"], 1)
    assert "not known whether it runs: host b does not answer" in site.only().reason
    site.launcher.silent.clear()
    site.wait(1)
    assert (site.only().pid, len(site.launcher.processes)) == (site.process.identity.pid, 1)


def test_an_end_is_written_down_whatever_the_launcher_makes_of_its_files(
    far: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(instance_id: str, lease: str) -> None:
        raise OSError("no route")

    monkeypatch.setattr(far.launcher, "discard", broken)
    far.process.code = 4
    far.settle()
    assert any(event.to_state == "failed" for event in far.events())
