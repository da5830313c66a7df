from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from trivet.errors import ConfigError, Conflict, RequestError
from trivet_registry.database import Database
from trivet_registry.deployment_changes import Update, sleep_deployment, update_deployment, wake_deployment
from trivet_registry.deployments_store import create_deployment, get_deployment, stop_deployment
from trivet_registry.events_store import list_events
from trivet_registry.instance_state import InstanceState
from trivet_registry.instances_store import create_instance, move_instance
from trivet_registry.models_store import register_model, remove_model
from trivet_registry.served import EngineRules, rules_of, served_rules
from trivet_registry.tables import Deployment


@pytest.fixture
def launched(db: Database, make_files: Callable[..., Any]) -> Database:
    with db.session() as session:
        version = register_model(session, make_files())
        create_deployment(session, name="chat", version=version, settings={"max_num_seqs": "4"})
        create_deployment(session, name="small", version=version, fallback="chat", priority=3)
    return db


def updated(database: Database, **changes: Any) -> Deployment:
    with database.session() as session:
        return update_deployment(session, "chat", Update(**changes))


@pytest.mark.parametrize(
    "changes", [{"backend": "ascend,cuda,cpu"}, {"device": "1"}, {"settings": {"max_num_seqs": "8"}}]
)
def test_what_an_engine_is_started_with_makes_a_new_generation(
    launched: Database, changes: dict[str, Any]
) -> None:
    deployment = updated(launched, **changes)
    assert (deployment.generation, deployment.first_generation) == (2, 1)


def test_adapters_replace_each_other_whatever_they_were_called(launched: Database) -> None:
    with launched.session() as session:
        version = get_deployment(session, "chat").version
        settings = {"lora_modules": '{"name": "a", "path": "/x"}'}
        made = create_deployment(session, name="adapted", version=version, settings=settings)
        assert made.settings == {"adapters": "a=/x"}
        for given, kept in (({"lora_modules": "b=/y c=/z"}, "b=/y,c=/z"), ({"adapters": "d=/x"}, "d=/x")):
            changed = update_deployment(session, "adapted", Update(settings=given))
            assert changed.settings == {"adapters": kept}
        changed = update_deployment(session, "adapted", Update(settings={"lora_modules": None}))
        assert changed.settings == {}


@pytest.mark.parametrize(
    "changes",
    [{}, {"replicas": 3}, {"priority": 1}, {"settings": {"idle_timeout_s": "60"}}, {"backend": "auto"}],
)
def test_the_rest_and_what_is_as_before_makes_none(launched: Database, changes: dict[str, Any]) -> None:
    assert updated(launched, **changes).generation == 1


def test_another_version_replaces_and_the_event_names_both(
    launched: Database, make_files: Callable[..., Any]
) -> None:
    with launched.session() as session:
        newer = register_model(session, make_files(content=b"GGUF, and more"))
        assert update_deployment(session, "chat", Update(version=newer)).generation == 2
        assert list_events(session, deployment="chat")[-1].reason == "update: model tiny:1 to tiny:2"


def test_settings_are_merged_and_none_takes_one_back(launched: Database) -> None:
    deployment = updated(launched, settings={"max_num_seqs": None, "seed": "7"})
    assert deployment.settings == {"seed": "7"}


def test_wrong_values_change_nothing(launched: Database) -> None:
    for changes, error in (
        ({"settings": {"max_num_seq": "4"}}, ConfigError),
        ({"settings": {"served_model_name": "other"}}, RequestError),
        ({"backend": "cpu,,cuda"}, RequestError),
        ({"backend": "auto,cpu"}, RequestError),
        ({"replicas": -1}, RequestError),
    ):
        with pytest.raises(error):
            updated(launched, **changes)
    with launched.reading() as session:
        deployment = get_deployment(session, "chat")
    assert (deployment.generation, deployment.backend, deployment.replicas) == (1, "auto", 1)


def test_a_stopped_deployment_is_not_updated(launched: Database) -> None:
    with launched.session() as session:
        stop_deployment(session, "chat")
    with pytest.raises(Conflict, match="launch it again"):
        updated(launched, priority=1)


def test_a_fallback_exists_and_leads_to_an_end(launched: Database) -> None:
    with launched.reading() as session:
        small = get_deployment(session, "small")
    assert (small.fallback, small.priority) == ("chat", 3)
    with pytest.raises(RequestError, match="'chta' is no deployment; existing: small"):
        updated(launched, fallback="chta")
    with pytest.raises(RequestError, match="chat -> small -> chat"):
        updated(launched, fallback="small")
    with pytest.raises(RequestError, match="chat -> chat"):
        updated(launched, fallback="chat")


def test_sleep_and_waking_are_events_and_happen_once(launched: Database) -> None:
    with launched.session() as session:
        assert not wake_deployment(session, "chat")
        for _ in range(2):
            sleep_deployment(session, "chat", "no request for 60 s")
        assert get_deployment(session, "chat").is_asleep
        assert wake_deployment(session, "chat")
        assert not wake_deployment(session, "chat")
        events = list_events(session, deployment="chat")
    assert [event.reason for event in events[-2:]] == ["no request for 60 s", "a request woke it"]


def test_a_launch_or_an_update_wakes(launched: Database) -> None:
    with launched.session() as session:
        sleep_deployment(session, "chat", "idle")
    assert not updated(launched, settings={"seed": "1"}).is_asleep


@pytest.mark.parametrize("value", [None, "none"])
def test_what_no_request_wakes_any_more_is_awake(launched: Database, value: str | None) -> None:
    updated(launched, settings={"idle_timeout_s": "60"})
    with launched.session() as session:
        sleep_deployment(session, "chat", "idle")
    assert updated(launched, priority=1).is_asleep
    deployment = updated(launched, settings={"idle_timeout_s": value})
    assert (deployment.is_asleep, deployment.generation) == (False, 1)


def test_a_launch_does_not_end_what_serves_beside_an_update_that_failed(launched: Database) -> None:
    def with_instance(state: str) -> None:
        with launched.session() as session:
            instance = create_instance(session, get_deployment(session, "chat"))
            instance.state = state

    def launch() -> None:
        with launched.session() as session:
            version = get_deployment(session, "chat").version
            create_deployment(session, name="chat", version=version)

    with_instance("ready")
    updated(launched, backend="cuda")
    with_instance("failed")
    with pytest.raises(Conflict, match="runs already"):
        launch()
    with launched.session() as session:
        for instance in get_deployment(session, "chat").instances:
            instance.state = "failed"
    launch()


def test_what_served_before_an_update_is_not_removed_until_the_update_serves(
    launched: Database, make_files: Callable[..., Any]
) -> None:
    """Its instances may be made anew; and SQLite would give its id to another model."""

    def serve_once() -> None:
        with launched.session() as session:
            instance = create_instance(session, get_deployment(session, "chat"))
            for state in ("placing", "starting", "ready", "stopping", "stopped"):
                move_instance(session, instance.id, InstanceState(state))

    serve_once()
    with launched.session() as session:
        stop_deployment(session, "small")
        newer = register_model(session, make_files(content=b"GGUF, and more"))
        update_deployment(session, "chat", Update(version=newer))
    with launched.session() as session, pytest.raises(Conflict, match="used by deployment chat"):
        remove_model(session, "tiny:1")
    serve_once()
    with launched.session() as session:
        remove_model(session, "tiny:1")


def test_an_instance_of_what_served_has_its_version_and_generation(
    launched: Database, make_files: Callable[..., Any]
) -> None:
    with launched.session() as session:
        first = create_instance(session, get_deployment(session, "chat"))
        for state in ("placing", "starting", "ready"):
            move_instance(session, first.id, InstanceState(state))
        newer = register_model(session, make_files(content=b"GGUF, and more"))
        update = Update(version=newer, backend="cuda", settings={"max_num_seqs": "8"})
        update_deployment(session, "chat", update)
    with launched.session() as session:
        deployment = get_deployment(session, "chat")
        again = create_instance(session, deployment, served_rules(deployment))
        assert (again.version.reference, again.generation) == ("tiny:1", 1)
        assert rules_of(again) == EngineRules(1, first.version_id, "auto", None, {"max_num_seqs": "4"})
        newest = create_instance(session, deployment)
        assert (newest.version.reference, rules_of(newest).backend) == ("tiny:2", "cuda")


def test_who_changes_what_somebody_else_has_changed_meanwhile_is_told(launched: Database) -> None:
    with launched.reading() as session:
        seen = get_deployment(session, "chat").updated_at
    first = updated(launched, replicas=2, if_updated_at=seen)
    assert first.replicas == 2
    with pytest.raises(Conflict, match=r"since you looked at it \(update: replicas 1 to 2\)"):
        updated(launched, replicas=3, if_updated_at=seen)
    assert updated(launched, replicas=3, if_updated_at=first.updated_at).replicas == 3
    assert updated(launched, replicas=1).replicas == 1
