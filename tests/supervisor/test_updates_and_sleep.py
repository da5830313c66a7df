"""An update replaces what runs; a deployment that nobody uses is unloaded and woken."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from trivet.messages import Drain, EngineLoad, Phase
from trivet_registry.deployment_changes import Update, update_deployment, wake_deployment
from trivet_registry.deployments_store import get_deployment, set_replicas, stop_deployment
from trivet_registry.events_store import list_events
from trivet_registry.instance_state import InstanceState
from trivet_supervisor.placement import NoRoom

if TYPE_CHECKING:
    from conftest import Site

NEW = Update(settings={"max_num_seqs": "2"})


def events_of(site: Site, **of: str) -> list[str]:
    with site.database.reading() as session:
        return [event.reason for event in list_events(session, **of)]  # type: ignore[arg-type]


def generations(site: Site) -> list[tuple[int, str]]:
    return [(i.generation, i.state) for i in site.instances() if i.state != "stopped"]


def test_an_update_serves_with_the_old_until_the_new_is_ready(site: Site) -> None:
    site.make_ready()
    site.change(update_deployment, "chat", NEW)
    site.settle()
    assert generations(site) == [(1, "ready"), (2, "starting")]
    assert site.wire.sent == []
    site.say(Phase.READY, site.instances(InstanceState.STARTING)[0])
    assert generations(site) == [(1, "draining"), (2, "ready")]
    assert [type(request) for _, request in site.wire.sent] == [Drain]
    assert "replaced by a newer" in site.instances(InstanceState.DRAINING)[0].reason
    site.launcher.processes[0].code = 0
    site.settle()
    assert generations(site) == [(2, "ready")]


def test_an_update_without_room_for_both_drains_the_old_first(site: Site) -> None:
    site.make_ready()
    site.places.refuses, site.places.fits_without_older = NoRoom("0.1 GiB is left"), True
    site.change(update_deployment, "chat", NEW)
    site.settle()
    assert generations(site) == [(1, "draining"), (2, "pending")]
    assert "makes room" in site.instances(InstanceState.DRAINING)[0].reason
    site.launcher.processes[0].code = 0
    site.places.refuses = None
    site.wait(2.5)
    assert generations(site) == [(2, "starting")]


def test_an_update_whose_room_is_held_by_others_ends_nothing_that_serves(site: Site) -> None:
    site.make_ready()
    site.places.refuses = NoRoom("it would fit without other")
    site.change(update_deployment, "chat", NEW)
    site.keep_alive(10)
    assert generations(site) == [(1, "ready"), (2, "pending")]
    site.places.fits_without_older = True  # the others have gone, the older one is in the way
    site.keep_alive(3)
    assert generations(site) == [(1, "draining"), (2, "pending")]


def test_an_update_that_cannot_start_leaves_the_old_serving_and_says_why(site: Site) -> None:
    site.make_ready()
    site.change(update_deployment, "chat", NEW)
    site.settle()
    site.process.code = 3
    site.wait(1)
    assert generations(site) == [(1, "ready"), (2, "failed")]
    site.change(update_deployment, "chat", Update(settings={"max_num_seqs": None}))
    site.settle()
    assert generations(site) == [(1, "ready"), (3, "starting")]


def fail_update(site: Site, replicas: int = 1) -> None:
    """The new settings end every engine that is started with them."""
    site.make_ready(replicas=replicas)
    site.change(update_deployment, "chat", NEW)
    site.settle()
    site.process.code = 3
    site.settle()
    assert generations(site) == [(1, "ready")] * replicas + [(2, "failed")]


def settings_of_orders(site: Site, num_last: int) -> list[str | None]:
    orders = [json.loads(Path(p.order.command[-1]).read_text()) for p in site.launcher.processes[-num_last:]]
    return [order["settings"].get("max_num_seqs") for order in orders]


def test_crashes_of_the_old_after_an_update_that_failed_are_mended_with_the_old_settings(site: Site) -> None:
    fail_update(site, replicas=2)
    for process in site.launcher.processes[:2]:
        process.code = -9
    site.wait(1)
    assert generations(site) == [(1, "starting"), (1, "starting"), (2, "failed")]
    assert settings_of_orders(site, 2) == [None, None]
    for instance in site.instances(InstanceState.STARTING):
        site.say(Phase.READY, instance)
    assert generations(site) == [(1, "ready"), (1, "ready"), (2, "failed")]


def test_the_next_serve_after_an_update_that_failed_runs_what_served(site: Site) -> None:
    fail_update(site, replicas=2)
    site.reconciler.shut_down(0)
    site.settle()
    for process in site.launcher.processes:
        process.code = 0
    site.settle()
    assert generations(site) == [(2, "failed")]
    site.start_supervisor()
    site.settle()
    assert sorted(generations(site)) == [(1, "starting"), (1, "starting"), (2, "failed")]
    assert settings_of_orders(site, 2) == [None, None]


@pytest.mark.parametrize("phase", [None, Phase.LOADING, Phase.WARMING])
def test_an_update_goes_on_right_after_the_next_serve(site: Site, phase: Phase | None) -> None:
    site.make_ready()
    site.change(update_deployment, "chat", NEW)
    site.settle()
    if phase is not None:
        site.say(phase, site.instances(InstanceState.STARTING)[0])
    site.reconciler.shut_down(0)
    site.settle()
    for process in site.launcher.processes:
        process.code = 0
    site.settle()
    assert generations(site) == []
    site.start_supervisor()
    site.settle()
    assert generations(site) == [(2, "starting")]
    assert settings_of_orders(site, 1) == ["2"]


@pytest.mark.parametrize("phase", [None, Phase.LOADING, Phase.WARMING])
def test_an_update_goes_on_after_the_host_was_started_anew(site: Site, phase: Phase | None) -> None:
    site.make_ready()
    site.change(update_deployment, "chat", NEW)
    site.settle()
    if phase is not None:
        site.say(phase, site.instances(InstanceState.STARTING)[0])
    site.launcher.processes.clear()
    site.start_supervisor()
    site.wait(1)
    assert generations(site) == [(1, "starting"), (2, "starting")]


def test_what_made_room_for_an_update_comes_back_when_that_fails(site: Site) -> None:
    site.make_ready(replicas=2)
    site.places.refuses, site.places.fits_without_older = NoRoom("0.1 GiB is left"), True
    site.change(update_deployment, "chat", NEW)
    site.settle()
    assert generations(site) == [(1, "ready"), (1, "draining"), (2, "pending"), (2, "pending")]
    site.launcher.processes[1].code = 0
    site.settle()
    assert generations(site) == [(1, "ready"), (2, "pending"), (2, "pending")], "until it is looked again"
    site.places.refuses = None
    site.keep_alive(3)
    assert generations(site) == [(1, "ready"), (2, "starting"), (2, "starting")]
    for process in site.launcher.processes[2:]:
        process.code = 3
    site.settle()
    assert sorted(generations(site)) == [(1, "ready"), (1, "starting"), (2, "failed")]


def test_an_update_of_what_sleeps_does_not_load_the_old(site: Site) -> None:
    site.make_ready(settings={"idle_timeout_s": "30"})
    site.keep_alive(31)
    site.process.code = 0
    site.settle()
    site.change(update_deployment, "chat", NEW)
    site.settle()
    assert generations(site) == [(2, "starting")]


def test_what_no_engine_is_started_with_restarts_nothing(site: Site) -> None:
    site.make_ready()
    site.change(update_deployment, "chat", Update(priority=5, settings={"idle_timeout_s": "600"}))
    site.settle()
    assert generations(site) == [(1, "ready")]
    assert "priority 0 to 5; idle_timeout_s default to 600" in events_of(site, deployment="chat")[-1]


def test_who_is_more_urgent_is_placed_first(site: Site) -> None:
    site.places.refuses = NoRoom("full")
    site.launch("later", priority=1)
    site.launch("first", priority=-1)
    site.settle()
    site.places.refuses = None
    site.wait(2.5)
    started = [process.order.log_file.parent.name for process in site.launcher.processes]
    assert started == ["first", "later"]


# ---- sleep ----


def asleep(site: Site) -> bool:
    with site.database.reading() as session:
        return get_deployment(session, "chat").is_asleep


def test_a_deployment_that_nobody_uses_is_unloaded_and_woken_by_a_request(site: Site) -> None:
    site.make_ready(settings={"idle_timeout_s": "30"})
    site.keep_alive(29)
    assert site.states() == ["ready"]
    site.keep_alive(2)
    assert (site.states(), asleep(site)) == (["draining"], True)
    site.process.code = 0
    site.settle()
    assert site.states() == ["stopped"]
    assert any("no request for 30 s" in reason for reason in events_of(site, deployment="chat"))
    assert any("is unloaded, for nobody uses it: drains" in reason for reason in events_of(site))
    site.wait(600, step_s=60)
    assert site.states() == ["stopped"], "it stays so, also for the next supervisor"
    site.start_supervisor()
    site.settle()
    site.change(wake_deployment, "chat")
    site.settle()
    assert sorted(site.states()) == ["starting", "stopped"]


def test_a_setting_that_this_version_does_not_know_concerns_its_own_deployment_only(site: Site) -> None:
    """A row that another version has written: the turn goes on for all others."""
    site.make_ready(settings={"idle_timeout_s": "30"})
    with site.database.session() as session:
        get_deployment(session, "chat").settings = {"idle_timeout_s": "30", "of_later": "1"}
    site.make_ready("other")
    assert site.states() == ["ready", "ready"]


def test_work_of_any_kind_keeps_it_loaded(site: Site) -> None:
    site.make_ready(settings={"idle_timeout_s": "30"})
    for second in range(100):
        site.clock.advance(1)
        site.say(Phase.READY, load=EngineLoad(num_running=1 if second < 50 else 0, prompt_tokens=second))
    assert site.states() == ["ready"], "running ones, and those that came and went between two beats"
    site.keep_alive(31)
    assert asleep(site)


def test_what_failed_or_finds_no_room_keeps_nothing_loaded(site: Site) -> None:
    fail_update(site)
    site.change(update_deployment, "chat", Update(settings={"idle_timeout_s": "30"}))
    site.keep_alive(32)
    assert generations(site) == [(1, "draining")], "beside an update that has failed"
    site.make_ready("crowded", settings={"idle_timeout_s": "30"})
    site.places.refuses = NoRoom("0.1 GiB is left")
    site.change(set_replicas, "crowded", 2)
    site.settle()
    assert [i.state for i in site.instances() if i.deployment.name == "crowded"] == ["ready", "pending"]
    site.keep_alive(32)
    assert {i.state for i in site.instances() if i.deployment.name == "crowded"} == {"draining", "stopped"}


def test_one_busy_replica_keeps_all_of_them(site: Site) -> None:
    site.make_ready(replicas=2, settings={"idle_timeout_s": "30"})
    busy, idle = site.instances()
    for _ in range(60):
        site.clock.advance(1)
        site.say(Phase.READY, idle)
        site.say(Phase.READY, busy, load=EngineLoad(num_running=1))
    assert site.states() == ["ready", "ready"]


def test_an_engine_order_has_no_setting_that_is_the_supervisors(site: Site) -> None:
    site.launch(settings={"idle_timeout_s": "30", "max_num_seqs": "4"})
    site.settle()
    order = json.loads(Path(site.process.order.command[-1]).read_text())
    assert set(order["settings"]) & {"idle_timeout_s", "max_num_seqs"} == {"max_num_seqs"}


def test_a_request_does_not_wake_what_was_stopped(site: Site) -> None:
    site.make_ready(settings={"idle_timeout_s": "30"})
    site.change(stop_deployment, "chat")
    with site.database.session() as session:
        assert not wake_deployment(session, "chat")
