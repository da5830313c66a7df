from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from trivet.errors import ConfigError, Conflict, NotFound, RequestError
from trivet_registry.database import Database
from trivet_registry.deployment_changes import Update, update_deployment
from trivet_registry.deployments_store import (
    create_deployment,
    get_deployment,
    list_deployments,
    set_replicas,
    stop_deployment,
)
from trivet_registry.events_store import list_events
from trivet_registry.instance_state import InstanceState
from trivet_registry.instances_store import create_instance, move_instance
from trivet_registry.models_store import register_model


@pytest.fixture
def launched(db: Database, make_files: Callable[..., Any]) -> Database:
    with db.session() as session:
        version = register_model(session, make_files())
        create_deployment(session, name="chat", version=version, settings={"max_num_seqs": "4"})
    return db


def test_a_deployment_keeps_what_was_asked_for(launched: Database) -> None:
    with launched.reading() as session:
        deployment = get_deployment(session, "chat")
        assert (deployment.backend, deployment.device, deployment.replicas) == ("auto", None, 1)
        assert deployment.settings == {"max_num_seqs": "4"}
        assert (deployment.desired, deployment.generation) == ("running", 1)
        assert deployment.version.name == "tiny"


def test_a_running_name_cannot_be_launched_twice(launched: Database) -> None:
    with launched.session() as session, pytest.raises(Conflict, match="'chat' runs already"):
        create_deployment(session, name="chat", version=get_deployment(session, "chat").version)


def test_a_stopped_name_is_launched_anew(launched: Database) -> None:
    with launched.session() as session:
        stop_deployment(session, "chat", drain_timeout_s=3)
        assert get_deployment(session, "chat").drain_timeout_s == 3
    with launched.session() as session:
        again = create_deployment(session, name="chat", version=get_deployment(session, "chat").version)
    assert (again.generation, again.desired, again.settings) == (2, "running", {})


@pytest.mark.parametrize(
    ("fields", "told"),
    [
        ({"priority": 10**30}, r"priority is 10+; it must be -1000000 to 1000000"),
        ({"device": "x" * 5000}, r"device 'x{80}'\.\.\. has 5000 characters"),
    ],
)
def test_what_no_column_holds_is_refused_at_launch_and_update(
    launched: Database, fields: dict[str, Any], told: str
) -> None:
    with launched.session() as session:
        version = get_deployment(session, "chat").version
        with pytest.raises(RequestError, match=told):
            create_deployment(session, name="other", version=version, **fields)
    with launched.session() as session, pytest.raises(RequestError, match=told):
        update_deployment(session, "chat", Update(**fields))


def test_a_name_whose_every_instance_failed_is_launched_anew(launched: Database) -> None:
    with launched.session() as session:
        instance = create_instance(session, get_deployment(session, "chat"))
    with launched.session() as session, pytest.raises(Conflict, match="runs already"):
        create_deployment(session, name="chat", version=get_deployment(session, "chat").version)
    with launched.session() as session:
        move_instance(session, instance.id, InstanceState.FAILED, "no such file")
        again = create_deployment(session, name="chat", version=get_deployment(session, "chat").version)
    assert again.generation == 2


def test_a_second_stop_may_be_less_patient(launched: Database) -> None:
    with launched.session() as session:
        stop_deployment(session, "chat", drain_timeout_s=600)
        assert stop_deployment(session, "chat").drain_timeout_s == 600
        assert stop_deployment(session, "chat", drain_timeout_s=0).drain_timeout_s == 0


def test_stopping_twice_is_one_event(launched: Database) -> None:
    with launched.session() as session:
        stop_deployment(session, "chat")
        stop_deployment(session, "chat")
        events = [e.to_state for e in list_events(session, deployment="chat")]
    assert events == ["running", "stopped"]


def test_deployments_are_listed_by_what_is_wanted(launched: Database) -> None:
    with launched.session() as session:
        assert [d.name for d in list_deployments(session, desired="running")] == ["chat"]
        assert not list_deployments(session, desired="stopped")


def test_replicas_can_be_changed_while_it_runs(launched: Database) -> None:
    with launched.session() as session:
        assert set_replicas(session, "chat", 3).replicas == 3
        stop_deployment(session, "chat")
        with pytest.raises(Conflict, match="stopped"):
            set_replicas(session, "chat", 1)


@pytest.mark.parametrize("replicas", [-1, 1025])
def test_a_senseless_number_of_replicas_is_refused(launched: Database, replicas: int) -> None:
    with launched.session() as session, pytest.raises(RequestError, match="0 to 1024"):
        set_replicas(session, "chat", replicas)


@pytest.mark.parametrize("timeout_s", [-1, float("nan"), float("inf")])
def test_a_senseless_drain_time_is_refused(launched: Database, timeout_s: float) -> None:
    with launched.session() as session, pytest.raises(RequestError, match="drain_timeout_s"):
        stop_deployment(session, "chat", timeout_s)


def test_wrong_engine_settings_are_refused_before_anything_runs(launched: Database) -> None:
    with launched.reading() as session:
        version = get_deployment(session, "chat").version
    with launched.session() as session, pytest.raises(ConfigError, match="max_num_seqs"):
        create_deployment(session, name="x", version=version, settings={"max_num_seq": "4"})


def test_an_unknown_deployment_lists_what_exists(launched: Database) -> None:
    with launched.reading() as session, pytest.raises(NotFound, match="existing: chat"):
        get_deployment(session, "chta")
