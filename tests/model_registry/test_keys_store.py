from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import TYPE_CHECKING

import pytest
from sqlalchemy import text

from trivet.errors import NotFound, RequestError
from trivet_registry.keys_store import (
    MARK,
    KeySettings,
    create_key,
    find_key,
    get_key,
    list_keys,
    revoke_key,
)
from trivet_registry.tables import utc_now
from trivet_registry.users_store import create_user, hash_of

if TYPE_CHECKING:
    from pathlib import Path

    from trivet_registry.database import Database

KEY = KeySettings("ci")


@pytest.mark.usefixtures("sqlite_only")
def test_a_key_is_long_random_and_in_no_file_of_the_database(db: Database, tmp_path: Path) -> None:
    with db.session() as session:
        made = [create_key(session, None, KEY) for _ in range(3)]
    keys = [key for _, key in made]
    assert len(set(keys)) == 3
    for row, key in made:
        assert key.startswith(MARK)
        assert len(key) >= len(MARK) + 43
        assert key.startswith(row.prefix)
        assert len(key) - len(row.prefix) >= 37
    db.close()
    content = b"".join(file.read_bytes() for file in tmp_path.glob("registry.db*"))
    assert made[0][0].hash.encode() in content
    assert not [key for key in keys if key.encode() in content or key[len(MARK) :].encode() in content]


def test_a_key_is_found_by_its_hash_until_it_is_revoked_for_good(db: Database) -> None:
    with db.session() as session:
        row, key = create_key(session, None, replace(KEY, models=["b", "a", "b"], scopes=["read", "infer"]))
        assert find_key(session, hash_of(key)) is row
        assert (row.models, row.scopes) == (["a", "b"], ["infer", "read"])
        revoke_key(session, row)
        first = row.revoked_at
        revoke_key(session, row)
        assert row.revoked_at == first is not None


def test_another_users_key_is_as_one_that_does_not_exist(db: Database) -> None:
    with db.session() as session:
        one, two = (create_user(session, name, "user", "h") for name in ("alice", "bob"))
        row, _ = create_key(session, one, KEY)
        assert get_key(session, row.id) is get_key(session, row.id, one.id)
        messages = []
        for key_id, user_id in ((row.id, two.id), (row.id + 1, two.id), (-1, None), (1 << 40, None)):
            with pytest.raises(NotFound) as caught:
                get_key(session, key_id, user_id)
            messages.append(str(caught.value).replace(str(key_id), "N"))
        assert len(set(messages)) == 1
        assert list_keys(session, two.id) == []
        assert [key.id for key in list_keys(session)] == [row.id]


@pytest.mark.parametrize(
    ("changes", "param"),
    [
        ({"name": " "}, "name"),
        ({"name": "n" * 129}, "name"),
        ({"name": "two\nlines"}, "name"),
        ({"name": "right\u202eleft"}, "name"),
        ({"scopes": []}, "scopes"),
        ({"models": []}, "models"),
        ({"priority": -1}, "priority"),
        ({"priority": 10}, "priority"),
        ({"max_concurrency": 0}, "max_concurrency"),
        ({"requests_per_minute": -5}, "requests_per_minute"),
        ({"expires_at": utc_now() - timedelta(seconds=1)}, "expires_at"),
    ],
)
def test_a_key_that_makes_no_sense_is_refused(db: Database, changes: dict[str, object], param: str) -> None:
    with db.session() as session, pytest.raises(RequestError) as caught:
        create_key(session, None, replace(KEY, **changes))
    assert caught.value.param == param


def test_scopes_that_are_half_written_are_none(db: Database) -> None:
    with db.session() as session:
        create_key(session, None, KEY)
        session.execute(text("UPDATE api_keys SET scopes = 'null'"))
    with db.reading() as session:
        assert [key.scopes for key in list_keys(session)] == [[]]
