"""The chain of acts: whole while nobody touches it, and the first row that somebody touched is named."""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING

import pytest
from sqlalchemy import text

from trivet.errors import RequestError, Unavailable
from trivet_registry import audit_log
from trivet_registry.audit_log import REFUSED, Act, accounts_version, append, list_entries, verify
from trivet_registry.events_store import list_events, record_event

if TYPE_CHECKING:
    from trivet_registry.database import Database

WRITER = """
import sys
from trivet_registry import audit_log
from trivet_registry.audit_log import Act, append
from trivet_registry.database import open_database
database = open_database(sys.argv[1])
for i in range(int(sys.argv[2])):
    with database.session() as session:
        append(session, Act("user w", "test.write", str(i), after={"i": i}))
"""
ACTS = 5


@pytest.fixture
def log(db: Database) -> Database:
    for number in range(1, ACTS + 1):
        with db.session() as session:
            act = Act("user alice", "key.create", f"key {number}", {"n": None}, {"n": number, "名": "é"})
            assert append(session, act) == number
    return db


def fault(db: Database, anchor: str | None = None) -> str | None:
    with db.reading() as session:
        return verify(session, anchor).fault


def head(db: Database) -> str:
    with db.reading() as session:
        verdict = verify(session)
        return f"{verdict.last_id}:{verdict.hash}"


def test_an_untouched_log_is_whole(log: Database) -> None:
    assert fault(log) is None
    with log.reading() as session:
        assert verify(session).last_id == accounts_version(session) == ACTS
        newest = list_entries(session, limit=2)
        assert [entry.id for entry in newest] == [5, 4]
        assert newest[0].after == '{"n":5,"名":"é"}'
        assert [entry.id for entry in list_entries(session, before_id=2)] == [1]


@pytest.mark.parametrize(
    "column", ["actor", "action", "target", "outcome", "address", "request_id", "before", "after", "hash"]
)
def test_an_edited_field_is_found_at_its_row(log: Database, column: str) -> None:
    with log.session() as session:
        session.execute(text(f"UPDATE audit_log SET {column} = 'x' WHERE id >= 3"))
    assert "entry 3 is not what was written" in str(fault(log))


def test_an_entry_that_was_hashed_anew_by_itself_is_found_at_the_next(log: Database) -> None:
    with log.session() as session:
        entries = {entry.id: entry for entry in list_entries(session)}
        values = {name: getattr(entries[3], name) for name in audit_log._HASHED} | {"actor": "user mallory"}
        forged = audit_log._chained(entries[2].hash, values)
        session.execute(
            text("UPDATE audit_log SET actor = 'user mallory', hash = :hash WHERE id = 3"), {"hash": forged}
        )
    assert "entry 4 is not what was written, or one before it" in str(fault(log))


def test_an_edited_time_is_found(log: Database) -> None:
    with log.session() as session:
        session.execute(text("UPDATE audit_log SET at = '2026-01-01 00:00:00' WHERE id = 2"))
    assert "entry 2" in str(fault(log))


@pytest.mark.parametrize(
    ("statement", "found"),
    [
        ("DELETE FROM audit_log WHERE id = 3", "entry 3 is missing"),
        ("DELETE FROM audit_log WHERE id = 1", "entry 1 is missing"),
        ("DELETE FROM audit_log WHERE id > 3", "entries 4 to 5 are missing"),
        ("DELETE FROM audit_log", "entries 1 to 5 are missing"),
        ("UPDATE audit_log SET id = id + 10 WHERE id = 5", "entry 5 is missing"),
        ("UPDATE audit_head SET hash = 'x'", "entry 5 is not the one that the head names"),
        ("DELETE FROM audit_head", "has lost its head"),
    ],
)
def test_a_removed_row_is_named(log: Database, statement: str, found: str) -> None:
    with log.session() as session:
        session.execute(text(statement))
    assert found in str(fault(log))


@pytest.mark.parametrize(
    ("value", "is_sqlites"),
    [
        ("hash = 'é'", False),
        ("at = 'infinity'", False),
        ("at = ''", True),
        ("at = 5", True),
        ("hash = x'00ff'", True),
        ("actor = CAST(x'ff' AS TEXT)", True),
    ],
)
def test_a_row_that_cannot_be_read_any_more_is_named(log: Database, value: str, is_sqlites: bool) -> None:
    if is_sqlites and log.engine.dialect.name != "sqlite":
        pytest.skip("PostgreSQL keeps only what is of the column's type")
    with log.session() as session:
        session.execute(text(f"UPDATE audit_log SET {value} WHERE id = 3"))
    assert "entry 3 is not what was written" in str(fault(log))
    if value.startswith("at"):
        with pytest.raises(Unavailable, match="audit verify"), log.reading() as session:
            list_entries(session)


@pytest.mark.parametrize("number", [0, -5, -(1 << 31), -3_000_000_000])
def test_a_row_put_in_before_all_others_is_found(log: Database, number: int) -> None:
    if number < -(1 << 31) and log.engine.dialect.name != "sqlite":
        pytest.skip("PostgreSQL has no such number in this column")
    with log.session() as session:
        session.execute(text(f"UPDATE audit_log SET id = {number} WHERE id = 5"))
        session.execute(
            text("UPDATE audit_head SET last_id = 4, hash = (SELECT hash FROM audit_log WHERE id = 4)")
        )
    assert f"the next one is {number}" in str(fault(log))


def test_a_second_head_and_one_without_a_number_are_told(log: Database) -> None:
    with log.session() as session:
        session.execute(
            text(
                "INSERT INTO audit_head (id, last_id, hash, accounts_version) "
                "SELECT 2, last_id, hash, accounts_version FROM audit_head"
            )
        )
    assert fault(log) is None, "nothing reads it"
    with log.reading() as session:
        assert accounts_version(session) == ACTS
    if log.engine.dialect.name == "sqlite":
        with log.session() as session:
            session.execute(text("UPDATE audit_head SET last_id = 'x' WHERE id = 1"))
        assert "entry 5 is not the one that the head names" in str(fault(log))


def test_a_row_put_in_is_found(log: Database) -> None:
    with log.session() as session:
        session.execute(text("UPDATE audit_log SET id = 6 WHERE id = 5"))
        session.execute(
            text(
                "INSERT INTO audit_log (id, at, actor, action, target, outcome, address, request_id, before, "
                "after, hash) SELECT 5, at, actor, 'forged', target, outcome, address, request_id, before, "
                "after, hash FROM audit_log WHERE id = 4"
            )
        )
    assert "entry 5 is not what was written" in str(fault(log))


def test_a_log_that_was_hashed_anew_is_found_by_its_anchor(log: Database) -> None:
    anchor = head(log)
    with log.session() as session:  # what somebody can do who may write everything
        session.execute(text("DELETE FROM audit_log"))
        session.execute(text(f"UPDATE audit_head SET last_id = 0, hash = '{'0' * 64}'"))
        for number in range(ACTS):
            append(session, Act("user mallory", "key.create", f"key {number}"))
    assert fault(log) is None
    assert "entry 5 is not the one of the anchor" in str(fault(log, anchor))
    with log.session() as session:
        session.execute(text("DELETE FROM audit_log WHERE id > 2"))
        session.execute(text("UPDATE audit_head SET last_id = 2, hash = (SELECT max(hash) FROM audit_log)"))
    assert "missing" in str(fault(log, anchor))


@pytest.mark.parametrize("anchor", ["", "5", "5:abc", "x:" + "0" * 64])
def test_an_anchor_that_is_none_is_refused(log: Database, anchor: str) -> None:
    with pytest.raises(RequestError, match="anchor"):
        fault(log, anchor)


def test_an_act_that_fails_leaves_no_entry_and_an_entry_that_fails_no_act(log: Database) -> None:
    def fail() -> None:
        with log.session() as session:
            record_event(session, "supervisor", "half done")
            append(session, Act("user alice", "test.half"))
            raise RuntimeError

    with pytest.raises(RuntimeError):
        fail()
    with log.reading() as session:
        assert accounts_version(session) == ACTS
        assert not list_events(session)
    assert fault(log) is None


def test_processes_that_write_at_once_make_one_chain(log: Database) -> None:
    url, each, writers = log.engine.url.render_as_string(hide_password=False), 25, 3
    running = [subprocess.Popen([sys.executable, "-c", WRITER, url, str(each)]) for _ in range(writers)]
    assert [process.wait(120) for process in running] == [0] * writers
    with log.reading() as session:
        verdict = verify(session)
    assert (verdict.fault, verdict.last_id) == (None, ACTS + each * writers)


def test_what_was_refused_changes_nothing_that_is_remembered_of_accounts(db: Database) -> None:
    with db.session() as session:
        append(session, Act("user alice", "key.create"))
    with db.session() as session:
        append(session, Act("user bob", "key.create", outcome=REFUSED))
        assert (accounts_version(session), verify(session).last_id) == (1, 2)


def test_an_act_without_the_head_of_the_log_is_not_done_and_says_why(log: Database) -> None:
    with log.session() as session:
        session.execute(text("DELETE FROM audit_head"))
    with pytest.raises(Unavailable, match="lost its head"), log.session() as session:
        append(session, Act("me", "test"))
