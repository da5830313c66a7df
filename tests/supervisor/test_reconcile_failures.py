"""Engines that die, fall silent or cannot be started."""

from __future__ import annotations

import errno
from datetime import timedelta
from typing import TYPE_CHECKING

import pytest

from trivet.messages import Phase
from trivet_registry.deployments_store import stop_deployment
from trivet_registry.events_store import list_events
from trivet_registry.instance_state import InstanceState
from trivet_registry.tables import utc_now

if TYPE_CHECKING:
    from conftest import Site


def test_an_engine_that_dies_while_loading_is_started_again_with_a_reason(site: Site) -> None:
    site.launch()
    site.settle()
    site.say(Phase.LOADING)
    site.process.order.log_file.parent.mkdir(parents=True, exist_ok=True)
    site.process.order.log_file.write_text("reading tensors\nSegmentation fault\n")
    site.process.code = -11
    site.settle()
    instance = site.only()
    assert instance.state == "pending"
    assert instance.reason == "attempt 2 in 0.5 s, because: killed by SIGSEGV"
    assert (instance.exit_code, instance.pid) == (-11, None)
    site.wait(0.5)
    assert site.only().state == "starting"
    assert site.process.order.log_file.name.endswith("-2.log")
    assert site.process.order.lease != site.launcher.processes[0].order.lease


def test_a_boot_that_fails_again_and_again_is_given_up_with_its_first_reason(site: Site) -> None:
    site.launch()
    site.settle()
    for reason in ("first", "second", "third"):
        site.say(Phase.FAILED, reason=reason)
        site.process.code = 4
        site.wait(5)
    instance = site.only()
    assert instance.state == "failed"
    assert "the first: exit code 4: first" in instance.reason
    assert "the last: exit code 4: third" in instance.reason
    assert len(site.launcher.processes) == 3
    site.wait(300, step_s=10)
    assert len(site.launcher.processes) == 3
    with site.database.reading() as session:
        moves = [e.to_state for e in list_events(session, instance=instance.id)]
    assert moves.count("failed") == 3


def test_a_start_that_is_hopeless_is_told_at_once(site: Site) -> None:
    site.launch()
    site.settle()
    site.say(Phase.FAILED, reason="tensor x is missing")
    site.process.code = 3
    site.settle()
    assert (site.only().state, site.only().reason) == ("failed", "exit code 3: tensor x is missing")


def test_a_failed_launch_does_not_block_the_next(site: Site) -> None:
    site.launch()
    site.settle()
    site.process.code = 3
    site.settle()
    site.launch()
    site.settle()
    states = sorted(site.states())
    assert states == ["starting", "stopped"]


def test_delays_grow_and_begin_anew_after_a_stable_while(site: Site) -> None:
    site.make_ready()
    delays = []
    for _ in range(4):
        site.process.code = 4
        site.settle()
        delays.append(site.only().reason.split(" in ")[1].split(",")[0])
        site.wait(10)
        site.say(Phase.READY)
    assert delays == ["0.5 s", "1 s", "2 s", "4 s"]
    site.keep_alive(61)
    site.process.code = 4
    site.settle()
    assert "in 0.5 s" in site.only().reason


def test_one_that_served_before_is_not_given_up_after_three_boots(site: Site) -> None:
    site.make_ready()
    for _ in range(5):
        site.process.code = 3
        site.wait(40)
    assert site.states() == ["starting"]


def test_an_exit_nobody_asked_for_is_a_failure_even_with_code_0(site: Site) -> None:
    site.make_ready()
    site.process.code = 0
    site.settle()
    assert "ended by itself with exit code 0" in site.only().reason


def test_an_engine_stopped_by_someone_else_is_replaced(site: Site) -> None:
    site.make_ready()
    site.say(Phase.STOPPING)
    assert site.states() == ["stopping", "starting"]
    site.launcher.processes[0].code = 0
    site.settle()
    assert site.states() == ["stopped", "starting"]


def come_up(site: Site) -> None:
    (starting,) = site.instances(InstanceState.STARTING)
    site.say(Phase.READY, starting)


def test_who_stops_engines_again_and_again_is_waited_for_longer_each_time(site: Site) -> None:
    site.make_ready()
    waits = []
    for _ in range(5):
        (ready,) = site.instances(InstanceState.READY)
        process = site.process
        site.say(Phase.STOPPING, ready)
        process.code = 0
        site.settle()
        since_s = site.clock.now_s
        while not site.instances(InstanceState.STARTING):
            (waiting,) = site.instances(InstanceState.PENDING)
            assert "someone else has stopped its engine" in waiting.reason
            site.wait(0.25, step_s=0.25)
        waits.append(site.clock.now_s - since_s)
        come_up(site)
        site.keep_alive(1)
    assert waits == pytest.approx([0, 0.5, 1, 2, 4], abs=0.3)
    site.keep_alive(70)
    process = site.process
    site.say(Phase.STOPPING, site.instances(InstanceState.READY)[0])
    process.code = 0
    site.settle()
    assert site.instances(InstanceState.STARTING), "it had been up for a minute"


def test_several_that_are_stopped_at_one_time_count_once(site: Site) -> None:
    site.make_ready(replicas=3)
    for instance in site.instances(InstanceState.READY):
        site.say(Phase.STOPPING, instance)
    for process in site.launcher.processes[:3]:
        process.code = 0
    site.settle()
    assert len(site.instances(InstanceState.STARTING)) == 3


def test_a_process_that_cannot_be_started_is_retried_then_given_up(site: Site) -> None:
    site.launcher.breaks_with = "no such interpreter"
    site.launch()
    site.settle()
    assert site.only().reason == "attempt 2 in 0.5 s, because: no such interpreter"
    site.wait(5)
    assert site.states() == ["failed"]


@pytest.mark.parametrize("fault", [KeyError("image"), OSError(28, "No space left on device")])
def test_a_launcher_that_breaks_is_told_given_up_and_holds_up_no_other(site: Site, fault: Exception) -> None:
    site.launcher.breaks_with = fault
    site.launch()
    site.settle()
    told = f"no process could be started: {type(fault).__name__}: {fault}"
    assert site.only().reason == f"attempt 2 in 0.5 s, because: {told}"
    site.wait(5)
    assert site.states() == ["failed"]
    assert told in site.only().reason
    site.launcher.breaks_with = None
    site.launch("whole")
    site.settle()
    assert site.states() == ["failed", "starting"]


def test_run_files_that_cannot_be_removed_keep_nothing_from_being_written_down(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    site.make_ready()

    def fail(*_: object, **__: object) -> None:
        raise OSError(errno.EROFS, "Read-only file system")

    with monkeypatch.context() as patch:
        patch.setattr("pathlib.Path.unlink", fail)
        patch.setattr("pathlib.Path.rename", fail)  # as the next order would be written
        site.process.code = 4
        site.settle()
        assert "exit code 4" in site.only().reason
        site.wait(1)
        assert "cannot be written: Read-only file system" in site.only().reason
    site.wait(5)
    assert site.states() == ["starting"]


# ---- deadlines ----


def test_a_start_without_a_sign_of_life_ends_at_its_deadline(site: Site) -> None:
    site.launch()
    site.settle()
    site.wait(119, step_s=1)
    assert site.states() == ["starting"]
    site.wait(2)
    assert site.launcher.processes[0].signals == ["kill"]
    assert "no sign of life" in (site.only().first_failure or "")


def test_a_silent_engine_is_asked_then_lost_killed_and_replaced(site: Site) -> None:
    site.make_ready()
    site.wait(4.5)
    watches = site.wire.num_watches
    site.wait(1)
    assert site.wire.num_watches > watches
    assert site.states() == ["ready"], "asked, and time to answer"
    site.launcher.processes[0].obeys = ()
    site.wait(3.5)
    assert site.states() == ["lost"], "not replaced while its process exists"
    assert "silent" in site.only().reason
    site.launcher.processes[0].code = -9
    site.settle()
    assert "silent" in site.only().reason, "why it was given up, not how it was killed"
    site.wait(1)
    assert site.states() == ["starting"]


def test_a_process_that_nothing_ends_is_told_as_that(site: Site) -> None:
    site.make_ready()
    site.process.obeys = ()
    site.change(stop_deployment, "chat", drain_timeout_s=0)
    site.settle()
    site.wait(30)
    assert site.states() == ["stopping"]
    assert site.only().reason.count("SIGKILL does not end pid 1001, 6001, a device may hang: see dmesg") == 1
    assert site.process.signals.count("kill") > 1


def test_an_answer_saves_a_silent_engine(site: Site) -> None:
    site.make_ready()
    site.wait(6)
    site.say(Phase.READY)
    site.wait(4)
    assert site.states() == ["ready"]
    assert site.process.signals == []


def test_a_supervisor_that_slept_blames_nobody(site: Site) -> None:
    site.make_ready()
    site.clock.advance(3600)
    site.settle()
    site.wait(4)
    assert site.states() == ["ready"]


def test_of_many_that_fall_silent_at_once_most_are_kept(site: Site, caplog: pytest.LogCaptureFixture) -> None:
    site.make_ready(replicas=8)
    for process in site.launcher.processes:
        process.obeys = ()
    site.wait(20)
    assert sorted(site.states()) == ["lost"] * 3 + ["ready"] * 5
    told = [record for record in caplog.records if "kept though silent" in record.getMessage()]
    assert len(told) == 5, "once of each"
    kept = site.instances(InstanceState.READY)
    assert all("did not answer when asked; kept for now: 3 others were given up" in i.reason for i in kept)
    site.say(Phase.READY, kept[0])
    assert site.instances(InstanceState.READY)[0].reason == "answers again after its silence, and serves"
    with site.database.reading() as session:
        of_one = [event.reason for event in list_events(session, instance=kept[0].id)]
    assert len([reason for reason in of_one if "kept for now" in reason]) == 1


@pytest.mark.parametrize("hours", [-1, 1, 24 * 365])
def test_setting_the_clock_changes_nothing(site: Site, monkeypatch: pytest.MonkeyPatch, hours: float) -> None:
    site.make_ready(settings={"idle_timeout_s": "600"})
    site.launch("draining")
    site.settle()
    site.say(Phase.READY, site.instances(InstanceState.STARTING)[0])
    site.change(stop_deployment, "draining", drain_timeout_s=60)
    jumped = utc_now() + timedelta(hours=hours)
    monkeypatch.setattr("time.time", jumped.timestamp)
    monkeypatch.setattr("trivet_registry.instances_store.utc_now", lambda: jumped)
    monkeypatch.setattr("trivet_registry.deployments_store.utc_now", lambda: jumped)
    site.keep_alive(3)
    site.start_supervisor()  # what it finds in the registry is of another time
    site.keep_alive(3)
    assert site.states() == ["ready", "draining"]
    assert [process.signals for process in site.launcher.processes] == [[], []]
