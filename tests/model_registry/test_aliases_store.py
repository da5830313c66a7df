from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from trivet.errors import Conflict, ModelNotFound, NotFound, RequestError
from trivet_registry.aliases_store import (
    alias_history,
    list_aliases,
    remove_alias,
    roll_back_alias,
    set_alias,
)
from trivet_registry.database import Database
from trivet_registry.deployment_changes import Update, update_deployment
from trivet_registry.deployments_store import create_deployment, get_deployment, stop_deployment
from trivet_registry.models_store import register_model, remove_model
from trivet_registry.references import choose

MakeFiles = Callable[..., Any]


@pytest.fixture
def three(db: Database, make_files: MakeFiles) -> Database:
    """A registry with tiny:1, tiny:2, tiny:3."""
    with db.session() as session:
        for content in (b"one", b"longer", b"the longest"):
            register_model(session, make_files(content=content))
    return db


def history(db: Database) -> list[tuple[int | None, int | None]]:
    with db.reading() as session:
        return [(move.from_version, move.to_version) for move in alias_history(session, "tiny", "prod")]


def launch(db: Database, reference: str, name: str = "chat") -> None:
    with db.session() as session:
        chosen = choose(session, reference)
        create_deployment(session, name=name, version=chosen.version, alias=chosen.alias)


def runs(db: Database, name: str = "chat") -> tuple[int, int]:
    """Version and generation."""
    with db.reading() as session:
        deployment = get_deployment(session, name)
        return deployment.version.version, deployment.generation


def test_an_alias_names_a_version_and_is_moved_and_rolled_back(three: Database) -> None:
    for version in ("1", "3", "2", "2"):
        with three.session() as session:
            assert set_alias(session, "tiny", "prod", version).version.version == int(version)
    with three.session() as session:
        assert choose(session, "tiny:prod").version.version == 2
        assert set_alias(session, "tiny", "canary", "prod").version.version == 2
        assert roll_back_alias(session, "tiny", "prod").version.version == 3
        assert [alias.name for alias in list_aliases(session, "tiny")] == ["canary", "prod"]
    assert history(three) == [(2, 3), (3, 2), (1, 3), (None, 1)], "a move to where it is, is none"


def test_who_was_launched_by_an_alias_follows_it(three: Database) -> None:
    with three.session() as session:
        set_alias(session, "tiny", "prod", "1")
    launch(three, "tiny:prod")
    launch(three, "tiny:1", "fixed")
    launch(three, "tiny:prod", "stopped")
    with three.session() as session:
        stop_deployment(session, "stopped")
        set_alias(session, "tiny", "prod", "2")
    assert (runs(three), runs(three, "fixed"), runs(three, "stopped")) == ((2, 2), (1, 1), (1, 1))
    with three.session() as session:
        roll_back_alias(session, "tiny", "prod")
    assert runs(three) == (1, 3)


def test_an_update_to_a_version_ends_the_following(three: Database) -> None:
    with three.session() as session:
        set_alias(session, "tiny", "prod", "1")
    launch(three, "tiny:prod")
    with three.session() as session:
        fixed = choose(session, "tiny:1")
        update_deployment(session, "chat", Update(version=fixed.version, alias=fixed.alias))
        set_alias(session, "tiny", "prod", "2")
    assert runs(three) == (1, 1), "no engine is replaced for a change of name alone"


def test_what_an_alias_points_at_is_not_removed(three: Database) -> None:
    with three.session() as session:
        set_alias(session, "tiny", "prod", "1")
        set_alias(session, "tiny", "prod", "2")
    with three.session() as session, pytest.raises(Conflict, match="where alias prod points"):
        remove_model(session, "tiny:2")
    with three.session() as session:
        remove_model(session, "tiny:1")
    with three.session() as session, pytest.raises(Conflict, match="version 1, which was removed"):
        roll_back_alias(session, "tiny", "prod")
    with three.session() as session:
        remove_model(session, "tiny")  # with all its aliases and their history


def test_an_alias_that_is_followed_is_not_removed(three: Database) -> None:
    with three.session() as session:
        set_alias(session, "tiny", "prod", "1")
    launch(three, "tiny:prod")
    with three.session() as session, pytest.raises(Conflict, match="followed by deployment chat"):
        remove_alias(session, "tiny", "prod")
    with three.session() as session:
        stop_deployment(session, "chat")
        remove_alias(session, "tiny", "prod")
    assert history(three) == [(1, None), (None, 1)]
    with three.session() as session, pytest.raises(ModelNotFound, match="registered: tiny:1,2,3"):
        choose(session, "tiny:prod")


@pytest.mark.parametrize("name", ["7", "latest", "a b", "a:b", ""])
def test_a_name_that_would_be_taken_for_something_else_is_refused(three: Database, name: str) -> None:
    with three.session() as session, pytest.raises(RequestError, match="alias"):
        set_alias(session, "tiny", name, "1")


def test_what_is_not_there_is_said(three: Database) -> None:
    with three.session() as session, pytest.raises(NotFound, match="no alias 'prod'; it has: none"):
        roll_back_alias(session, "tiny", "prod")
    with three.session() as session:
        set_alias(session, "tiny", "prod", "1")
    with three.session() as session, pytest.raises(Conflict, match="never pointed at another"):
        roll_back_alias(session, "tiny", "prod")
    with three.session() as session, pytest.raises(ModelNotFound, match="registered: tiny:1,2,3,prod"):
        set_alias(session, "tiny", "prod", "9")
