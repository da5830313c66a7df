from __future__ import annotations

from collections.abc import Callable
from typing import Any

from trivet_registry.database import Database
from trivet_registry.deployments_store import create_deployment
from trivet_registry.events_store import list_events, record_event
from trivet_registry.instance_state import InstanceState
from trivet_registry.instances_store import create_instance, list_instances, move_instance
from trivet_registry.models_store import register_model
from trivet_registry.retention import prune


def test_the_newest_events_stay(db: Database) -> None:
    with db.session() as session:
        assert prune(session) == 0
        for number in range(10):
            record_event(session, "supervisor", str(number))
    with db.session() as session:
        assert prune(session, kept_events=3) == 7
        assert prune(session, kept_events=3) == 0
        assert [event.reason for event in list_events(session)] == ["7", "8", "9"]


def test_of_each_deployment_the_newest_that_have_stopped_stay_and_all_that_live(
    db: Database, make_files: Callable[..., Any]
) -> None:
    with db.session() as session:
        version = register_model(session, make_files())
        for name in ("a", "b"):
            deployment = create_deployment(session, name=name, version=version)
            made = [create_instance(session, deployment).id for _ in range(6)]
            for instance in made[:4]:
                move_instance(session, instance, InstanceState.STOPPED, "stopped")
            move_instance(session, made[4], InstanceState.FAILED, "failed")
    with db.session() as session:
        before = {i.id: i.state for i in list_instances(session, "a")}
        assert prune(session, kept_stopped=1) == 6
        states = [i.state for i in list_instances(session, "a")]
        assert sorted(states) == ["failed", "pending", "stopped"]
        (kept,) = list_instances(session, "a", [InstanceState.STOPPED])
        assert before[kept.id] == "stopped"
        assert len(list_instances(session, "b")) == 3
