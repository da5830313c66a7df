from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest
from sqlalchemy import text

from trivet.errors import NotFound
from trivet_registry.database import Database
from trivet_registry.deployments_store import create_deployment
from trivet_registry.events_store import list_events
from trivet_registry.instance_state import IllegalMove, InstanceState
from trivet_registry.instances_store import (
    create_instance,
    get_instance,
    list_instances,
    move_instance,
    ready_instances,
    update_instance,
)
from trivet_registry.models_store import register_model

S = InstanceState


@pytest.fixture
def instance_id(db: Database, make_files: Callable[..., Any]) -> str:
    with db.session() as session:
        version = register_model(session, make_files())
        return create_instance(session, create_deployment(session, name="chat", version=version)).id


def move_along(db: Database, instance_id: str, *states: S) -> None:
    for state in states:
        with db.session() as session:
            move_instance(session, instance_id, state)


def test_a_move_records_its_event_in_the_same_transaction(db: Database, instance_id: str) -> None:
    with db.session() as session:
        moved = move_instance(session, instance_id, S.PLACING, "chooses", backend="null")
    assert (moved.state, moved.reason, moved.backend) == ("placing", "chooses", "null")
    with db.reading() as session:
        event = list_events(session, instance=instance_id)[-1]
    assert (event.from_state, event.to_state, event.reason, event.deployment) == (
        "pending",
        "placing",
        "chooses",
        "chat",
    )


def test_a_move_that_is_rolled_back_leaves_no_event(db: Database, instance_id: str) -> None:
    def fail() -> None:
        with db.session() as session:
            move_instance(session, instance_id, S.PLACING)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    with db.reading() as session:
        assert get_instance(session, instance_id).state == S.PENDING
        assert len(list_events(session, instance=instance_id)) == 1


def test_an_illegal_move_changes_nothing(db: Database, instance_id: str) -> None:
    with pytest.raises(IllegalMove, match="from pending to ready"), db.session() as session:
        move_instance(session, instance_id, S.READY)
    with db.reading() as session:
        assert get_instance(session, instance_id).state == S.PENDING


def test_of_two_who_make_the_same_move_one_loses(db: Database, instance_id: str) -> None:
    outcomes: list[str] = []
    barrier = threading.Barrier(2)

    def move() -> None:
        barrier.wait(30)
        try:
            with db.session() as session:
                move_instance(session, instance_id, S.PLACING)
            outcomes.append("moved")
        except IllegalMove:
            outcomes.append("refused")

    threads = [threading.Thread(target=move) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert sorted(outcomes) == ["moved", "refused"]


def test_a_move_from_a_state_that_is_no_longer_true_is_refused(db: Database, instance_id: str) -> None:
    # As where transactions do not exclude each other (PostgreSQL): this session still sees "pending".
    with db.session() as session:
        seen = get_instance(session, instance_id)
        session.connection().execute(text("UPDATE instances SET state = 'stopped'"))
        assert seen.state == "pending"
        with pytest.raises(IllegalMove, match="no longer pending"):
            move_instance(session, instance_id, S.PLACING)


def test_only_ready_instances_are_routed_to(db: Database, instance_id: str) -> None:
    move_along(db, instance_id, S.PLACING, S.STARTING, S.LOADING)
    with db.reading() as session:
        assert not ready_instances(session)
    move_along(db, instance_id, S.READY)
    with db.reading() as session:
        ready = ready_instances(session)
    assert [i.id for i in ready] == [instance_id]
    assert ready[0].ready_at is not None
    assert (ready[0].deployment.name, ready[0].version.name) == ("chat", "tiny"), "readable after the session"


def test_an_end_has_its_time(db: Database, instance_id: str) -> None:
    move_along(db, instance_id, S.PLACING, S.FAILED)
    with db.reading() as session:
        assert get_instance(session, instance_id).ended_at is not None


def test_instances_are_listed_by_deployment_and_state(db: Database, instance_id: str) -> None:
    with db.reading() as session:
        assert [i.id for i in list_instances(session, "chat")] == [instance_id]
        assert not list_instances(session, "other")
        assert not list_instances(session, states=[S.READY])
        assert [i.id for i in list_instances(session, states=[S.PENDING, S.READY])] == [instance_id]


def test_an_update_refreshes_as_of_and_never_the_state(db: Database, instance_id: str) -> None:
    with db.reading() as session:
        before = get_instance(session, instance_id).as_of
    with db.session() as session:
        update_instance(session, instance_id, progress_done=1, progress_total=4, load={"num_running": 2})
    with db.reading() as session:
        instance = get_instance(session, instance_id)
        assert instance.as_of > before
        assert (instance.progress, instance.load) == (0.25, {"num_running": 2})
    with db.session() as session, pytest.raises(ValueError, match="move_instance"):
        update_instance(session, instance_id, state="ready")


def test_an_unknown_instance_is_not_found(db: Database) -> None:
    with db.session() as session, pytest.raises(NotFound, match="'nope'"):
        move_instance(session, "nope", S.PLACING)
