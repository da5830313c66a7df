"""From what is wanted to engines that serve: starting, placing, scaling, stopping."""

from __future__ import annotations

import json
import stat
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from sqlalchemy import text

from trivet.errors import DoesNotFit, ModelFilesError
from trivet.messages import Drain, EngineLoad, LaunchOrder, Phase, Stop
from trivet_registry.deployments_store import set_replicas, stop_deployment
from trivet_registry.events_store import list_events
from trivet_registry.instance_state import InstanceState
from trivet_supervisor.placement import NoRoom

if TYPE_CHECKING:
    from conftest import Site


# ---- up ----


def test_a_launch_goes_through_every_state_as_the_engine_says(site: Site) -> None:
    site.launch()
    site.settle()
    assert site.states() == ["starting"]
    for phase in (Phase.LOADING, Phase.WARMING, Phase.READY):
        site.say(phase)
        assert site.states() == [phase]
    with site.database.reading() as session:
        moves = [e.to_state for e in list_events(session, instance=site.only().id)]
    assert moves == ["pending", "placing", "starting", "loading", "warming", "ready"]


def test_what_an_engine_tells_is_there_as_soon_as_it_is_ready(site: Site) -> None:
    """Whoever waits for `ready` reads its notices then, and not a second later."""
    site.launch()
    site.settle()
    site.say(Phase.WARMING)
    site.say(
        Phase.READY, notices=["a kernel is slow"], memory=[("weights", 999)], load=EngineLoad(num_running=1)
    )
    instance = site.only()
    assert (instance.state, instance.notices, instance.memory) == (
        "ready",
        ["a kernel is slow"],
        {"weights": 999},
    )
    assert instance.load is not None
    assert instance.load["num_running"] == 1


def test_nothing_is_ready_because_time_passed(site: Site) -> None:
    site.launch()
    site.settle()
    site.say(Phase.WARMING)
    site.wait(4)
    assert site.states() == ["warming"]


def test_an_engine_gets_its_order_its_lease_and_its_whole_environment(site: Site) -> None:
    site.launch(settings={"max_num_seqs": "4"})
    site.settle()
    instance, order = site.only(), site.process.order
    file = Path(order.command[-1])
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    told = json.loads(file.read_text())
    assert set(told) == set(LaunchOrder.__struct_fields__)
    assert told["lease"] == order.lease == order.env["TRIVET_LEASE"] == instance.lease
    assert told["settings"] == {
        "max_num_seqs": "4",
        "max_model_len": "2048",
        "max_num_batched_tokens": "256",
        "num_gpu_blocks_override": "100",
    }, "the engine arrives at the plan that was reserved"
    assert told["peaks_dir"] == str(site.settings.paths.peaks)
    assert (told["served_model_name"], told["device_uids"]) == ("chat", ["host"])
    assert order.env["TORCH_DEVICE_BACKEND_AUTOLOAD"] == "0"
    assert order.env["FAKE_DEVICES"] == "host"
    assert order.env["PATH"] == "/bin"
    assert order.log_file == site.settings.paths.logs / "chat" / f"{instance.id}-1.log"


def test_a_plan_stands_in_the_registry_and_the_ledger(site: Site) -> None:
    site.launch(replicas=2)
    site.settle()
    plan = site.instances()[0].plan
    assert plan is not None
    assert plan["parts"] == [
        {"name": "weights", "size_bytes": 1000},
        {"name": "kv", "size_bytes": 2000},
    ]
    assert (plan["num_blocks"], plan["block_size"], plan["max_model_len"]) == ([100], 16, 2048)
    reserved = [sum(holding.size_bytes for holding in each.holdings) for each in site.places.ledgers]
    assert reserved == [0, 3000]


def test_ten_launches_are_ten_processes_with_ten_leases(site: Site) -> None:
    for number in range(5):
        site.launch(f"chat{number}", replicas=2)
    site.settle()
    assert site.states() == ["starting"] * 10
    assert len({process.order.lease for process in site.launcher.processes}) == 10
    assert len({process.order.command[-1] for process in site.launcher.processes}) == 10


def test_loads_and_progress_are_saved_once_a_second(site: Site) -> None:
    site.launch()
    site.settle()
    site.say(Phase.LOADING, progress_done=25, progress_total=100)
    assert site.only().progress == 0.25, "with the state"
    site.say(Phase.LOADING, progress_done=50, progress_total=100)
    assert site.only().progress == 0.25
    before = site.only().as_of
    site.wait(1)
    assert site.only().progress == 0.5
    assert site.only().as_of > before
    site.say(Phase.READY, load=EngineLoad(num_running=3), memory=[("weights", 999)])
    site.wait(1)
    load = site.only().load
    assert load is not None
    assert load["num_running"] == 3
    assert site.only().memory == {"weights": 999}
    assert site.wire.num_watches >= 2, "the engine hears that somebody watches"


def test_as_of_stands_still_while_an_engine_is_silent(site: Site) -> None:
    site.make_ready()
    site.wait(1)
    before = site.only().as_of
    site.wait(3)
    assert site.only().as_of == before


def test_a_beat_with_another_lease_is_no_sign_of_life(site: Site) -> None:
    site.launch()
    site.settle()
    site.say(Phase.READY, lease="of an earlier process")
    assert site.states() == ["starting"]


# ---- placing ----


def test_what_cannot_be_placed_fails_at_once_with_the_plans_own_words(site: Site) -> None:
    site.places.refuses = DoesNotFit("needs 5.2 GiB and 3.1 GiB is free; lower max_model_len")
    site.launch()
    site.settle()
    assert site.states() == ["failed"]
    assert site.only().reason == "needs 5.2 GiB and 3.1 GiB is free; lower max_model_len"
    assert not site.launcher.processes


def test_an_instance_waits_for_room_that_others_hold_and_says_so(site: Site) -> None:
    site.places.refuses = NoRoom("0.1 GiB is left on gpu0")
    site.launch()
    site.settle()
    assert site.states() == ["pending"]
    assert site.only().reason == "waits for room: 0.1 GiB is left on gpu0"
    site.wait(20)
    with site.database.reading() as session:
        moves = [e.to_state for e in list_events(session, instance=site.only().id)]
    assert moves == ["pending", "placing", "pending"], "looking again is no move"
    site.places.refuses = None
    site.wait(2.5)
    assert site.states() == ["starting"]


def test_files_that_change_under_a_running_model_do_not_give_it_up_at_once(site: Site) -> None:
    site.make_ready()
    site.places.refuses = ModelFilesError("x.gguf has changed since it was registered")
    site.process.code = 4
    site.settle()
    site.wait(0.5)
    assert site.states() == ["pending"]
    assert "has changed" in site.only().reason


def test_a_backend_that_breaks_harms_only_its_own_instance(site: Site) -> None:
    site.places.refuses = KeyError("vram")
    site.launch("broken")
    site.settle()
    assert "KeyError: 'vram'" in site.only().reason
    site.places.refuses = None
    site.launch("whole")
    site.settle()
    assert site.states() == ["failed", "starting"]


@pytest.mark.parametrize("env", [KeyError("vram"), {"FAKE_DEVICES": 0}])
def test_a_backend_whose_launch_env_is_broken_is_told_as_that_and_holds_nobody_up(
    site: Site, monkeypatch: pytest.MonkeyPatch, env: object
) -> None:
    def launch_env(devices: object) -> object:
        if isinstance(env, Exception):
            raise env
        return env

    site.launch("broken")
    with monkeypatch.context() as patch:
        patch.setattr(site.places.backend, "launch_env", launch_env)
        site.settle()
    assert site.states() == ["failed"]
    assert "is faulty: launch_env r" in site.only().reason
    site.launch("whole")
    site.settle()
    assert site.states() == ["failed", "starting"]


# ---- scale and stop ----


def test_scaling_up_starts_what_is_missing(site: Site) -> None:
    site.make_ready()
    site.change(set_replicas, "chat", 3)
    site.settle()
    assert site.states() == ["ready", "starting", "starting"]


def test_scaling_down_ends_those_first_that_serve_nobody(site: Site) -> None:
    site.make_ready(replicas=2)
    site.change(set_replicas, "chat", 4)
    site.settle()
    site.change(set_replicas, "chat", 1)
    site.settle()
    assert site.states() == ["ready", "draining", "stopping", "stopping"]


def test_scaling_down_keeps_the_one_that_serves_even_if_it_is_younger(site: Site) -> None:
    site.launch(replicas=2)
    site.settle()
    _, younger = site.instances()
    site.say(Phase.READY, younger)
    site.change(set_replicas, "chat", 1)
    site.settle()
    assert site.states() == ["stopping", "ready"]


def test_an_engine_that_dies_as_it_is_stopped_is_told_once(site: Site) -> None:
    site.make_ready()
    site.change(stop_deployment, "chat")
    site.process.code = 4
    site.settle()
    with site.database.reading() as session:
        events = list_events(session, instance=site.only().id)
    ends = [(e.to_state, e.reason) for e in events[-3:]]
    assert ends[0] == ("failed", "exit code 4")
    assert [state for state, _ in ends] == ["failed", "pending", "stopped"]


def test_a_stop_drains_and_is_complete_only_when_the_process_is_gone(site: Site) -> None:
    site.make_ready()
    site.change(stop_deployment, "chat", drain_timeout_s=10)
    site.settle()
    (sent,) = site.wire.sent
    assert isinstance(sent[1], Drain)
    assert sent[1].timeout_s == 10
    site.say(Phase.DRAINING)
    site.wait(9)
    assert site.states() == ["draining"]
    site.process.code = 0
    site.settle()
    assert site.states() == ["stopped"]
    assert not list(site.settings.paths.run.glob("engine-*"))


@pytest.mark.parametrize("holders", [None, frozenset({1001})])
def test_stopped_is_told_when_the_device_has_its_memory_back(
    site: Site, holders: frozenset[int] | None
) -> None:
    site.make_ready()
    site.change(stop_deployment, "chat", drain_timeout_s=0)
    site.settle()
    site.process.code, site.holders = 0, holders
    site.wait(5)
    assert site.states() == ["stopping"]
    assert site.only().reason == "its process is gone; waits until host has its memory back"
    site.holders = frozenset()
    site.settle()
    assert site.states() == ["stopped"]


@pytest.mark.parametrize(
    ("holders", "told"),
    [(frozenset({1001}), "did not give"), (None, "is not told to have given")],
)
def test_memory_that_does_not_come_back_holds_a_stop_up_for_a_while_only(
    site: Site, holders: frozenset[int] | None, told: str
) -> None:
    site.make_ready()
    site.change(stop_deployment, "chat", drain_timeout_s=0)
    site.settle()
    site.process.code, site.holders = 0, holders
    site.wait(28, step_s=4)
    assert site.states() == ["stopping"]
    site.wait(8, step_s=4)
    assert site.states() == ["stopped"]
    assert f"host {told} its memory back within 30 s of its end" in site.only().reason


def test_an_instance_without_devices_in_its_row_stops_all_the_same(site: Site) -> None:
    site.make_ready()
    with site.database.session() as session:
        session.execute(text("UPDATE instances SET device_uids = 'null'"))
    site.change(stop_deployment, "chat", drain_timeout_s=0)
    site.settle()
    site.process.code, site.holders = 0, frozenset({1001})
    site.wait(40, step_s=4)
    assert site.states() == ["stopped"]


def test_a_crash_is_told_before_the_memory_is_back(site: Site) -> None:
    site.make_ready()
    site.process.code, site.holders = 4, frozenset({1001})
    site.settle()
    assert site.states() == ["pending"]


def test_a_drain_that_does_not_end_becomes_stop_then_sigterm_then_sigkill(site: Site) -> None:
    site.make_ready()
    site.process.obeys = ("kill",)
    site.change(stop_deployment, "chat", drain_timeout_s=10)
    site.settle()
    site.say(Phase.DRAINING)
    site.wait(16)
    assert site.states() == ["stopping"]
    assert isinstance(site.wire.sent[-1][1], Stop)
    site.wait(3.5)
    assert site.process.signals == ["terminate"]
    assert site.states() == ["stopping"]
    site.wait(6)
    assert site.process.signals == ["terminate", "kill"]
    assert site.states() == ["stopped"]


def test_a_second_stop_shortens_the_drain(site: Site) -> None:
    site.make_ready()
    site.change(stop_deployment, "chat", drain_timeout_s=600)
    site.settle()
    site.change(stop_deployment, "chat", drain_timeout_s=0)
    site.settle()
    drains = [request.timeout_s for _, request in site.wire.sent if isinstance(request, Drain)]
    assert drains == [600, 0]
    site.wait(6)
    assert site.states() == ["stopping"]


def test_a_drain_that_was_not_heard_is_told_again(site: Site) -> None:
    site.make_ready()
    site.change(stop_deployment, "chat")
    site.settle()
    for _ in range(3):
        site.wait(1)
        site.say(Phase.READY)
    assert len([1 for _, request in site.wire.sent if isinstance(request, Drain)]) == 2


@pytest.mark.parametrize("phase", [None, Phase.LOADING, Phase.WARMING])
def test_a_stop_while_it_comes_up_does_not_drain(site: Site, phase: Phase | None) -> None:
    site.launch()
    site.settle()
    if phase is not None:
        site.say(phase)
    site.change(stop_deployment, "chat")
    site.settle()
    assert site.states() == ["stopping"]
    assert [type(request) for _, request in site.wire.sent] == [Stop]


def test_a_stop_without_a_process_is_complete_at_once(site: Site) -> None:
    site.places.refuses = NoRoom("full")
    site.launch()
    site.settle()
    site.change(stop_deployment, "chat")
    site.settle()
    assert site.states() == ["stopped"]


def test_a_relaunch_while_the_old_one_drains_starts_a_new_one(site: Site) -> None:
    site.make_ready()
    site.change(stop_deployment, "chat")
    site.launch(settings={"max_num_seqs": "2"})
    site.settle()
    assert site.states() == ["draining", "starting"]


def test_a_shutdown_ends_everything_and_the_next_supervisor_runs_it_again(site: Site) -> None:
    site.make_ready(replicas=2)
    site.reconciler.shut_down(5)
    site.settle()
    assert site.states() == ["draining"] * 2
    assert site.reconciler.waits_for_engines()
    for process in site.launcher.processes:
        process.code = 0
    site.settle()
    assert not site.reconciler.waits_for_engines()
    site.start_supervisor()
    site.settle()
    assert sorted(site.states()) == ["starting"] * 2 + ["stopped"] * 2


def test_nothing_is_started_any_more_in_a_turn_of_a_shutdown_in_which_another_moves(site: Site) -> None:
    site.launch()
    site.settle()
    site.places.refuses = NoRoom("full")
    site.change(set_replicas, "chat", 2)
    site.settle()
    starting, waiting = site.instances()
    site.places.refuses = None
    site.clock.advance(3)
    site.reconciler.shut_down(5)
    site.say(Phase.LOADING, starting)
    assert len(site.launcher.processes) == 1
    assert [i.id for i in site.instances(InstanceState.STOPPED)] == [waiting.id]
