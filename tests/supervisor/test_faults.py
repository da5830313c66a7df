"""An exception that nobody foresaw ends the work on one deployment, and no other's."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from trivet_registry.deployment_changes import Update, update_deployment
from trivet_registry.deployments_store import get_deployment, stop_deployment
from trivet_registry.events_store import list_events
from trivet_registry.instance_state import InstanceState
from trivet_supervisor.placement import NoRoom

if TYPE_CHECKING:
    from conftest import Site


def test_a_fault_at_one_deployment_is_told_and_holds_up_no_other(site: Site) -> None:
    site.make_ready("broken")
    with site.database.session() as session:
        get_deployment(session, "broken").settings = {"idle_timeout_s": "soon"}
    site.launch("whole")
    site.keep_alive(20)
    assert site.states() == ["ready", "starting"]
    with site.database.reading() as session:
        (told,) = [e.reason for e in list_events(session, deployment="broken") if e.kind == "supervisor"]
    assert "the supervisor failed at it: ConfigError: " in told
    assert "soon" in told
    site.process.code = 4
    site.settle()
    assert site.states() == ["ready", "pending"]
    with site.database.session() as session:
        get_deployment(session, "broken").settings = {}
    site.change(stop_deployment, "broken")
    site.wait(6, step_s=1)
    assert "draining" in site.states(), "it is matched again once it can be"


def test_a_process_that_cannot_be_looked_at_holds_up_no_other(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    site.make_ready("broken")

    def fail() -> int:
        raise PermissionError("/proc/1001: hidden")

    with monkeypatch.context() as patch:
        patch.setattr(site.process, "exit_code", fail)
        patch.setattr("trivet_supervisor.fleet.Fleet.has_news", lambda self: False)
        site.make_ready("whole")
        site.process.code = 4
        site.settle()
        assert site.states() == ["ready", "pending"]
    site.launcher.processes[0].code = 4
    site.wait(6)
    assert site.states() == ["starting", "starting"]


def test_a_backend_that_breaks_as_it_plans_without_the_older_ones_holds_up_nobody(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    site.make_ready()

    def place(version: Any, settings: Any, backend: str, device: Any, ledger: Any) -> Any:
        raise KeyError("vram") if ledger.gone else NoRoom("0.1 GiB is left")

    with monkeypatch.context() as patch:
        patch.setattr(site.places, "place", place)
        site.change(update_deployment, "chat", Update(settings={"max_num_seqs": "2"}))
        site.keep_alive(5)
        assert site.states() == ["ready", "pending"]
        assert site.instances(InstanceState.PENDING)[0].reason == "waits for room: 0.1 GiB is left"
    site.keep_alive(3)
    assert site.states() == ["ready", "starting"]
