from __future__ import annotations

from collections.abc import Callable
from typing import Any

from trivet_registry.database import Database
from trivet_registry.deployments_store import (
    create_deployment,
    get_deployment,
    list_deployments,
    stop_deployment,
)
from trivet_registry.events_store import list_events, record_event
from trivet_registry.instance_state import InstanceState
from trivet_registry.instances_store import create_instance, list_instances, move_instance
from trivet_registry.models_store import register_model
from trivet_registry.retention import Kept, prune


def test_the_newest_events_stay(db: Database) -> None:
    with db.session() as session:
        assert prune(session).num_rows == 0
        for number in range(10):
            record_event(session, "supervisor", str(number))
    with db.session() as session:
        assert prune(session, Kept(events=3)).num_rows == 7
        assert prune(session, Kept(events=3)).num_rows == 0
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
        assert prune(session, Kept(stopped_instances=1)).num_rows == 6
        states = [i.state for i in list_instances(session, "a")]
        assert sorted(states) == ["failed", "pending", "stopped"]
        (kept,) = list_instances(session, "a", [InstanceState.STOPPED])
        assert before[kept.id] == "stopped"
        assert len(list_instances(session, "b")) == 3


def test_a_deployment_that_fails_for_ever_pushes_out_no_history_but_its_own_oldest(db: Database) -> None:
    with db.session() as session:
        record_event(session, "deployment", "launch", deployment="quiet")
        record_event(session, "supervisor", "of the site")
        for number in range(10):
            record_event(session, "instance", str(number), deployment="noisy")
    with db.session() as session:
        assert prune(session, Kept(events_of_each=2)).num_rows == 8
        assert [event.reason for event in list_events(session)] == ["launch", "of the site", "8", "9"]


def test_the_deployments_that_stopped_last_stay_and_all_that_are_wanted_end_or_help(
    db: Database, make_files: Callable[..., Any]
) -> None:
    with db.session() as session:
        version = register_model(session, make_files())
        for name in ("wanted", "old", "helper", "ending", "new"):
            create_deployment(session, name=name, version=version)
        get_deployment(session, "wanted").fallback = "helper"
        create_instance(session, get_deployment(session, "ending"))
        record_event(session, "deployment", "of old", deployment="old")
    for name in ("old", "helper", "ending", "new"):
        with db.session() as session:
            stop_deployment(session, name)
    with db.session() as session:
        assert prune(session, Kept(stopped_deployments=1)).deployments == ["old"]
    with db.session() as session:
        names = [deployment.name for deployment in list_deployments(session)]
        assert names == ["ending", "helper", "new", "wanted"]
        assert any(e.reason == "of old" for e in list_events(session, deployment="old"))
        create_deployment(session, name="old", version=version)
