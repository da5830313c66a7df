from __future__ import annotations

import fcntl
import os
import stat
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import delete, insert, text, update
from sqlalchemy.dialects import postgresql
from sqlalchemy.exc import DBAPIError
from sqlalchemy.schema import CreateTable

from trivet.errors import ConfigError, Conflict
from trivet_registry import account_tables, migrations
from trivet_registry import database as database_module
from trivet_registry.database import Database, open_database
from trivet_registry.events_store import list_events, record_event
from trivet_registry.tables import Base, Deployment, Model

WRITER = """
import sys
from trivet_registry.database import open_database
from trivet_registry.events_store import list_events, record_event
database = open_database(sys.argv[1])
for i in range(int(sys.argv[3])):
    with database.session() as session:
        before = len(list_events(session, limit=10_000))  # read, then write, in one transaction
        record_event(session, "supervisor", f"{sys.argv[2]} {i} {before}")
"""


def test_head_is_the_newest_script() -> None:
    scripts = ScriptDirectory(str(Path(migrations.__file__).parent))
    assert scripts.get_current_head() == migrations.HEAD


def test_migrations_make_exactly_the_tables(db: Database) -> None:
    assert account_tables.User.__tablename__ in Base.metadata.tables
    with db.engine.connect() as connection:
        assert compare_metadata(MigrationContext.configure(connection), Base.metadata) == []


def test_tables_can_be_made_on_postgresql() -> None:
    for table in Base.metadata.sorted_tables:
        assert "CREATE TABLE" in str(CreateTable(table).compile(dialect=postgresql.dialect()))


@pytest.mark.usefixtures("sqlite_only")
def test_file_is_closed_to_others_and_in_wal_mode(db: Database, tmp_path: Path) -> None:
    with db.session() as session:
        record_event(session, "supervisor", "x")
        assert session.execute(text("PRAGMA journal_mode")).scalar() == "wal"
        for file in tmp_path.glob("registry.db*"):
            assert stat.S_IMODE(file.stat().st_mode) == 0o600, file
        assert (tmp_path / "registry.db-wal").exists()


@pytest.mark.parametrize(("is_durable", "level"), [(True, 2), (False, 1)])
def test_only_a_durable_commit_waits_for_the_disk(tmp_path: Path, is_durable: bool, level: int) -> None:
    database = open_database(f"sqlite:///{tmp_path / 'registry.db'}", is_durable=is_durable)
    with database.session() as session:
        assert session.execute(text("PRAGMA synchronous")).scalar() == level
    database.close()


def test_foreign_keys_hold(db: Database) -> None:
    lost = Deployment(
        name="x", version_id=999, backend="auto", replicas=1, settings={}, desired="running", generation=1
    )
    with pytest.raises(Conflict, match=r"(?i)foreign key"), db.session() as session:
        session.add(lost)


def test_processes_that_open_a_new_registry_at_once_all_succeed(empty_registry_url: str) -> None:
    url = empty_registry_url
    writers = [
        subprocess.Popen([sys.executable, "-c", WRITER, url, str(n), "25"], stderr=subprocess.PIPE, text=True)
        for n in range(4)
    ]
    for writer in writers:
        _, errors = writer.communicate(timeout=120)
        assert writer.returncode == 0, errors
    database = open_database(url)
    with database.reading() as session:
        events = list_events(session, limit=10_000)
    database.close()
    counts = [int(event.reason.split()[2]) for event in events]
    assert counts == list(range(100)), "read-then-write transactions saw each other's state"


def test_an_opening_waits_for_another_that_migrates(tmp_path: Path) -> None:
    # Two that switch a new file to WAL together would fail now and then, whatever the busy timeout.
    url = f"sqlite:///{tmp_path / 'registry.db'}"
    opened: list[Database] = []
    thread = threading.Thread(target=lambda: opened.append(open_database(url)))
    with open(tmp_path / "registry.db.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        thread.start()
        thread.join(0.5)
        assert not opened
    thread.join(60)
    opened[0].close()


def test_an_opening_that_another_holds_up_for_too_long_is_a_sentence_with_its_pid(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(database_module, "OPENING_TIMEOUT_S", 0.2)
    url = f"sqlite:///{tmp_path / 'registry.db'}"
    open_database(url).close()
    with open(tmp_path / "registry.db.lock") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        told = rf"has been held for 0.2 s by another process .*\(pid {os.getpid()}\); see whether it hangs"
        with pytest.raises(ConfigError, match=told):
            open_database(url)


def test_threads_share_one_database(db: Database) -> None:
    def write() -> None:
        for _ in range(20):
            with db.session() as session:
                number = len(list_events(session, limit=1000))
                record_event(session, "supervisor", str(number))

    threads = [threading.Thread(target=write) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    with db.reading() as session:
        assert [e.reason for e in list_events(session, limit=1000)] == [str(n) for n in range(80)]


def test_a_reader_is_not_held_up_by_a_writer(db: Database) -> None:
    with db.session() as writing:
        record_event(writing, "supervisor", "not committed yet")
        writing.flush()
        with db.reading() as reading:
            assert list_events(reading) == []


def test_a_failed_block_leaves_nothing_behind(db: Database) -> None:
    def fail() -> None:
        with db.session() as session:
            record_event(session, "supervisor", "x")
            session.flush()
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    with db.reading() as session:
        assert list_events(session) == []


def test_a_reading_session_refuses_to_write(db: Database) -> None:
    with db.reading() as session:
        session.add(Model(name="x"))
        with pytest.raises(RuntimeError, match="read only"):
            session.flush()


def test_a_reading_session_refuses_statements_that_write(db: Database) -> None:
    with db.reading() as session:
        for statement in (insert(Model).values(name="x"), update(Model).values(name="x"), delete(Model)):
            with pytest.raises(RuntimeError, match="read only"):
                session.execute(statement)


def test_times_come_back_aware(db: Database) -> None:
    with db.session() as session:
        record_event(session, "supervisor", "x")
    with db.reading() as session:
        assert list_events(session)[0].at.utcoffset() is not None


def test_a_registry_of_a_newer_trivet_is_refused(db: Database, registry_url: str) -> None:
    with db.session() as session:
        session.execute(text("UPDATE alembic_version SET version_num = '9999'"))
    with pytest.raises(ConfigError, match=r"9999.*newer Trivet"):
        open_database(registry_url)


@pytest.mark.parametrize(
    ("url", "message"),
    [
        *((url, "cannot be opened") for url in ("nonsense", "sqlite://", "sqlite:////proc/none/registry.db")),
        ("nosuch://host/db", "begins with nosuch:; write sqlite:///FILE or postgresql://"),
        ("mysql+pymysql://host/db", "begins with mysql"),
    ],
)
def test_an_address_that_cannot_be_opened_is_a_config_error(url: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        open_database(url)


OPENER = """
import resource, sys
from trivet.errors import ConfigError
from trivet_registry.database import open_database
resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 15, 1 << 15))  # as on a disk that is full
try:
    open_database(sys.argv[1])
except ConfigError as error:
    print(error)
"""


@pytest.mark.usefixtures("sqlite_only")
def test_a_backup_for_which_there_is_no_room_is_a_sentence_and_keeps_none(
    db: Database, tmp_path: Path
) -> None:
    with db.session() as session:
        session.execute(text("UPDATE alembic_version SET version_num = '0001'"))
    db.close()
    command = [sys.executable, "-c", OPENER, f"sqlite:///{tmp_path / 'registry.db'}"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert "registry.db cannot be opened: " in done.stdout, done.stderr
    assert not list(tmp_path.glob("*before-upgrade*"))


@pytest.mark.usefixtures("sqlite_only")
def test_a_backup_that_cannot_be_made_is_a_config_error(db: Database, tmp_path: Path) -> None:
    with db.session() as session:
        session.execute(text("UPDATE alembic_version SET version_num = '0001'"))
    (tmp_path / "registry.db.before-upgrade-of-0001.partial").mkdir()
    with pytest.raises(ConfigError, match=r"cannot be opened: .*before-upgrade-of-0001"):
        open_database(f"sqlite:///{tmp_path / 'registry.db'}")


def test_a_file_that_is_no_registry_is_a_config_error(tmp_path: Path) -> None:
    file = tmp_path / "registry.db"
    file.write_text("this is not SQLite, " * 100)
    with pytest.raises(ConfigError, match="not a database"):
        open_database(f"sqlite:///{file}")


def test_errors_of_the_database_tell_no_values(db: Database) -> None:
    with pytest.raises(DBAPIError) as raised, db.session() as session:
        session.execute(text("SELECT :password FROM none"), {"password": "a secret hash"})
    assert "a secret hash" not in str(raised.value)
