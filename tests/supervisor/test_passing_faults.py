"""What has served before is tried again for as long as it is wanted, whatever fault it met."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from trivet.errors import ConfigError, ModelFilesError, Unavailable, Unsupported
from trivet.messages import Phase
from trivet_registry.deployment_changes import sleep_deployment, wake_deployment
from trivet_registry.deployments_store import set_replicas, stop_deployment
from trivet_registry.instance_state import InstanceState
from trivet_registry.served import is_given_up
from trivet_supervisor.placement import FilesChanged

if TYPE_CHECKING:
    from conftest import Site

NO_DRIVER = Unsupported("backend cuda has no device: its driver is not loaded")
AWAY = ModelFilesError("model file x.gguf cannot be read: stale file handle")


def shut_down(site: Site) -> None:
    """As SIGTERM of the host's end does, and the next serve."""
    site.reconciler.shut_down(0)
    for _ in range(3):
        site.settle()
        for process in site.launcher.processes:
            process.code = 0
    site.settle()
    assert set(site.states()) <= {"stopped", "failed"}
    site.start_supervisor()


def living(site: Site) -> list[str]:
    return [state for state in site.states() if state != "stopped"]


def test_a_device_that_is_late_after_an_orderly_reboot_is_waited_for(site: Site) -> None:
    site.make_ready()
    shut_down(site)
    site.places.refuses = NO_DRIVER
    site.settle()
    assert living(site) == ["pending"]
    assert "attempt 1 in 0.5 s" in site.instances(InstanceState.PENDING)[0].reason
    site.wait(5)
    site.places.refuses = None
    site.wait(10)
    assert living(site) == ["starting"]


def test_a_fault_that_lasts_long_is_told_as_failed_and_tried_again_every_minute(site: Site) -> None:
    site.make_ready()
    site.process.code = 4
    site.places.refuses = AWAY
    site.wait(400, step_s=5)
    instance = site.only()
    assert instance.state == "failed"
    assert "served before and is tried again every 60 s" in instance.reason
    assert not is_given_up(instance)
    assert "the first: exit code 4" in instance.reason
    num_looks = len(site.places.ledgers)
    site.wait(300, step_s=5)
    assert 4 <= len(site.places.ledgers) - num_looks <= 6
    site.places.refuses = None
    site.wait(61, step_s=1)
    assert site.states() == ["starting"]
    site.say(Phase.READY)
    assert (site.only().state, site.only().boot_failures) == ("ready", 0)


def test_a_new_supervisor_tries_what_was_given_up_at_once_and_with_a_fresh_count(site: Site) -> None:
    site.make_ready()
    site.process.code = 4
    site.places.refuses = AWAY
    site.wait(400, step_s=5)
    assert site.states() == ["failed"]
    shut_down(site)
    site.settle()
    assert site.states() == ["pending"]
    assert site.only().boot_failures == 1
    site.places.refuses = None
    site.wait(1)
    assert site.states() == ["starting"]


def test_what_fails_as_it_wakes_is_tried_again(site: Site) -> None:
    site.make_ready(settings={"idle_timeout_s": "30"})
    site.change(sleep_deployment, "chat", "idle")
    site.settle()
    site.process.code = 0
    site.settle()
    site.places.refuses = Unavailable("placing took more than 45 s")
    site.change(wake_deployment, "chat")
    site.settle()
    assert living(site) == ["pending"]
    site.places.refuses = None
    site.wait(1)
    assert living(site) == ["starting"]


def test_a_replica_more_of_what_serves_is_tried_again(site: Site) -> None:
    site.make_ready()
    site.places.refuses = NO_DRIVER
    site.change(set_replicas, "chat", 2)
    site.keep_alive(400, step_s=4)
    assert site.states() == ["ready", "failed"]
    site.places.refuses = None
    site.keep_alive(61)
    assert site.states() == ["ready", "starting"]


@pytest.mark.parametrize("fault", [FilesChanged("x.gguf has changed"), ConfigError("no such setting")])
def test_what_only_a_person_can_mend_is_final_until_the_next_supervisor(site: Site, fault: Exception) -> None:
    site.make_ready()
    site.process.code = 4
    site.places.refuses = fault
    site.wait(3600, step_s=30)
    instance = site.only()
    assert (instance.state, instance.attempt) == ("failed", 1)
    assert "tried again" not in instance.reason
    assert is_given_up(instance)
    assert len(site.places.ledgers) == 2, "at the launch and after the crash"
    site.places.refuses = None
    site.start_supervisor()
    site.wait(1)
    assert site.states() == ["starting"], "a restart of the server asks again"
    assert not site.only().needs_change


def test_whether_it_is_tried_again_is_told_by_no_words_of_its_reason(site: Site) -> None:
    site.places.refuses = ConfigError("setting x: it has served before and is tried again every day")
    site.launch()
    site.wait(3600, step_s=30)
    assert site.only().state == "failed"
    assert is_given_up(site.only())


def test_a_first_launch_that_fails_is_not_tried_again(site: Site) -> None:
    site.places.refuses = NO_DRIVER
    site.launch()
    site.wait(3600, step_s=30)
    site.start_supervisor()
    site.wait(300, step_s=30)
    assert site.states() == ["failed"]
    assert len(site.places.ledgers) == 1


def test_a_launch_under_the_same_name_is_a_first_launch(site: Site) -> None:
    site.make_ready()
    site.change(stop_deployment, "chat", drain_timeout_s=0)
    site.settle()
    site.process.code = 0
    site.settle()
    site.places.refuses = NO_DRIVER
    site.launch()
    site.wait(300, step_s=30)
    assert living(site) == ["failed"]


def test_what_is_not_wanted_any_more_is_not_tried_again(site: Site) -> None:
    site.make_ready()
    site.process.code = 4
    site.places.refuses = AWAY
    site.wait(400, step_s=5)
    site.places.refuses = None
    site.change(stop_deployment, "chat")
    site.wait(120, step_s=10)
    assert site.states() == ["stopped"]
