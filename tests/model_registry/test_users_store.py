from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING

import pytest
from sqlalchemy import update

from trivet.errors import Conflict, NotFound, RequestError
from trivet_registry.account_tables import LoginSession, User
from trivet_registry.keys_store import KeySettings, create_key, find_key, list_keys
from trivet_registry.tables import utc_now
from trivet_registry.users_store import (
    IDLE,
    LIFETIME,
    count_users,
    create_user,
    end_session,
    end_sessions,
    find_session,
    find_user,
    get_user,
    hash_of,
    list_sessions,
    open_session,
    remove_user,
    set_disabled,
    set_password_hash,
    set_role,
)

if TYPE_CHECKING:
    from sqlalchemy.orm import Session

    from trivet_registry.database import Database


def alice(session: Session, role: str = "admin") -> User:
    return create_user(session, "alice", role, "argon2id-hash")


def test_a_name_is_one_user_in_upper_and_lower_case(db: Database) -> None:
    with db.session() as session:
        create_user(session, " Alice ", "admin", "h")
        assert get_user(session, "ALICE").name == "alice"
        with pytest.raises(Conflict, match="'alice' exists already"):
            create_user(session, "aLiCe", "user", "h")
        assert count_users(session) == 1


@pytest.mark.parametrize("name", ["", " ", "a b", "-a", "a" * 65, "a/b", "ä", "a\nb", "a\0"])
def test_a_name_that_is_none_is_refused(db: Database, name: str) -> None:
    with db.session() as session, pytest.raises(RequestError, match="name is") as caught:
        create_user(session, name, "user", "h")
    assert caught.value.param == "name"


def test_an_unknown_role_is_refused(db: Database) -> None:
    with db.session() as session, pytest.raises(RequestError, match="admin, operator, user, viewer"):
        create_user(session, "bob", "root", "h")


def test_an_unknown_user_is_not_found(db: Database) -> None:
    with db.reading() as session, pytest.raises(NotFound, match="'bob' does not exist"):
        get_user(session, "bob")


def test_the_last_admin_stays(db: Database) -> None:
    with db.session() as session:
        one = alice(session)
        for act in (
            lambda: set_role(session, one, "user"),
            lambda: set_disabled(session, one, True),
            lambda: remove_user(session, one),
        ):
            with pytest.raises(Conflict, match="the last admin"):
                act()
        two = create_user(session, "bob", "admin", "h")
        set_disabled(session, two, True)
        with pytest.raises(Conflict, match="the last admin"):  # a disabled one does not count
            set_role(session, one, "user")
        set_disabled(session, two, False)
        set_role(session, one, "user")
        assert one.role == "user"


def test_a_session_is_kept_as_a_hash_and_found_by_it(db: Database) -> None:
    with db.session() as session:
        row = open_session(session, alice(session), "secret", "127.0.0.1", "curl")
        assert row.hash == hash_of("secret") != "secret"
        found = find_session(session, hash_of("secret"), utc_now())
        assert found is not None
        assert found.user.name == "alice"
        assert find_session(session, hash_of("other"), utc_now()) is None


def test_a_session_ends_when_it_is_idle_or_old(db: Database) -> None:
    with db.session() as session:
        row = open_session(session, alice(session), "secret", "", "")
        now = utc_now()
        assert find_session(session, row.hash, now + IDLE - timedelta(minutes=1)) is not None
        assert find_session(session, row.hash, now + IDLE) is None
        session.execute(update(LoginSession).values(last_seen_at=now + LIFETIME))
        session.expire_all()
        assert find_session(session, row.hash, now + LIFETIME) is None


def test_a_session_that_a_clock_opened_years_ahead_has_ended(db: Database) -> None:
    with db.session() as session:
        row = open_session(session, alice(session), "secret", "", "")
        assert find_session(session, row.hash, utc_now() - timedelta(hours=1)) is not None
        assert find_session(session, row.hash, utc_now() - timedelta(days=3650)) is None


def test_old_sessions_are_swept_away_by_the_next_login(db: Database) -> None:
    with db.session() as session:
        user = alice(session)
        open_session(session, user, "old", "", "")
        session.execute(update(LoginSession).values(last_seen_at=utc_now() - IDLE))
        open_session(session, user, "new", "", "")
        session.expire_all()
        assert session.get(LoginSession, hash_of("old")) is None
        assert [row.hash for row in list_sessions(session, user)] == [hash_of("new")]


@pytest.mark.parametrize("change", ["role", "disabled", "password", "removed"])
def test_sessions_end_with_a_change_of_their_user(db: Database, change: str) -> None:
    with db.session() as session:
        create_user(session, "root", "admin", "h")
        user = alice(session, "operator")
        open_session(session, user, "secret", "", "")
        if change == "role":
            set_role(session, user, "user")
        elif change == "disabled":
            set_disabled(session, user, True)
        elif change == "password":
            set_password_hash(session, user, "new")
        else:
            remove_user(session, user)
    with db.reading() as session:
        assert find_session(session, hash_of("secret"), utc_now()) is None
        assert (find_user(session, "alice") is None) is (change == "removed")


def test_a_new_password_keeps_the_session_that_set_it(db: Database) -> None:
    with db.session() as session:
        user = alice(session)
        for secret in ("mine", "other"):
            open_session(session, user, secret, "", "")
        end_sessions(session, user, keep=hash_of("mine"))
        assert [row.hash for row in list_sessions(session)] == [hash_of("mine")]
        assert end_session(session, hash_of("mine"))
        assert not end_session(session, hash_of("mine"))


def test_keys_go_with_their_user(db: Database) -> None:
    with db.session() as session:
        create_user(session, "root", "admin", "h")
        user = alice(session, "user")
        row, _ = create_key(session, user, KeySettings("ci"))
        remove_user(session, user)
        session.flush()
        session.expunge_all()
        assert find_key(session, row.hash) is None
        assert list_keys(session) == []
