"""Opens the registry: makes or upgrades its tables and hands out transactions.

A write transaction takes SQLite's write lock when it begins (BEGIN IMMEDIATE). A transaction that
reads first and writes later cannot be made to wait by the busy timeout when another wrote in between:
SQLite answers "database is locked" at once. PostgreSQL would let both write, each upon what it read before
the other: there a write transaction takes an advisory lock, so that one follows the other as on SQLite, and a
reading one sees one snapshot.
"""

from __future__ import annotations

import fcntl
import json
import os
import sqlite3
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any, TextIO

from sqlalchemy import Connection, Engine, create_engine, event, inspect, make_url, text
from sqlalchemy.engine import URL
from sqlalchemy.exc import ArgumentError, DBAPIError, IntegrityError
from sqlalchemy.orm import ORMExecuteState, Session, sessionmaker

from trivet.errors import ConfigError, Conflict
from trivet.hidden_logins import without_logins
from trivet.lock_holder import write_holder
from trivet_registry.migrations import HEAD, upgrade_to_head

BUSY_TIMEOUT_S = 30.0
OPENING_TIMEOUT_S = 120.0  # while another upgrades a large one
_UPGRADE_LOCK_KEY = 0x7472697665  # "trive", of pg_advisory_xact_lock
# A host that is gone without a word is noticed in 25 s: by default TCP waits for a quarter of an hour.
_LIBPQ_PATIENCE = {
    "connect_timeout": 10,
    "keepalives_idle": 10,
    "keepalives_interval": 5,
    "keepalives_count": 3,
    "tcp_user_timeout": 25_000,
}
_WRITE_LOCK_KEY = 0x7472777274  # "trwrt", of pg_advisory_xact_lock
_READ_ONLY = "trivet_read_only"  # an execution option of ours
_READS_ONLY = "this session is read only; use Database.session() to change the registry"


class ReadOnlySession(Session):
    """Refuses to write, so that a change made on it cannot get lost without a word."""

    def flush(self, objects: Any = None) -> None:
        if self.new or self.dirty or self.deleted:
            raise RuntimeError(_READS_ONLY)
        super().flush(objects)


@event.listens_for(ReadOnlySession, "do_orm_execute")
def _refuse_writing(state: ORMExecuteState) -> None:
    if state.is_insert or state.is_update or state.is_delete:
        raise RuntimeError(_READS_ONLY)


class Database:
    """The registry of a site. Use it from any thread; sessions stay in theirs."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self._write = sessionmaker(engine, expire_on_commit=False)
        self._read = sessionmaker(
            engine.execution_options(**_reading_options(engine)),
            class_=ReadOnlySession,
            expire_on_commit=False,
        )

    @contextmanager
    def session(self) -> Iterator[Session]:
        """One write transaction: committed at the end, rolled back where the block raises.

        Raises: Conflict where another transaction made the same thing first.
        """
        try:
            with self._write.begin() as session:
                if self.engine.dialect.name == "postgresql":
                    session.execute(text("SELECT pg_advisory_xact_lock(:key)"), {"key": _WRITE_LOCK_KEY})
                yield session
        except IntegrityError as error:
            raise Conflict(
                f"the registry was changed meanwhile ({error.orig}); look again, then retry"
            ) from error

    @contextmanager
    def reading(self) -> Iterator[Session]:
        """One consistent view that neither waits for writers nor holds them up."""
        with self._read() as session:
            yield session

    def close(self) -> None:
        self.engine.dispose()


def open_database(url: str, *, is_durable: bool = True, patience_s: float = BUSY_TIMEOUT_S) -> Database:
    """Connect and upgrade to the newest tables; of processes that start at once, one upgrades.

    `is_durable` false: commits do not wait for the disk, and a power cut may undo the last of them (never
    a crash of processes). It is for what is observed, which a power cut makes untrue anyway: a busy disk
    was seen to hold up a commit for seconds, and the supervisor must not wait for that.
    `patience_s`: how long a transaction waits for one that holds the registry; opening always waits longer.

    Raises: ConfigError for an address that cannot be opened, or a registry newer than this Trivet.
    """
    try:
        engine = _create_engine(_with_driver(make_url(url)), is_durable)
    except ModuleNotFoundError as error:
        hint = "; pip install 'trivet[postgres]'" if error.name in ("psycopg", "psycopg2") else ""
        raise ConfigError(f"database {_hidden(url)} cannot be opened: {error}{hint}") from error
    except (ArgumentError, OSError) as error:
        raise ConfigError(f"database {_hidden(url)} cannot be opened: {error}") from error
    try:
        with _opening_lock(engine) as connection:
            found = revision_of(connection)
            if found != HEAD:
                if found is not None and engine.dialect.name == "sqlite":
                    back_up(Path(str(engine.url.database)), found)
                upgrade_to_head(connection)
    except (DBAPIError, sqlite3.Error, OSError) as error:  # OSError: of the lock file or the backup
        engine.dispose()
        cause = error.orig if isinstance(error, DBAPIError) else error
        raise ConfigError(
            f"database {_hidden(url)} cannot be opened: {cause}; see `trivet doctor`"
        ) from error
    except ConfigError:
        engine.dispose()
        raise
    if patience_s != BUSY_TIMEOUT_S:
        engine.dispose()
        engine = _create_engine(engine.url, is_durable, patience_s)
    return Database(engine)


def _create_engine(url: URL, is_durable: bool, patience_s: float = BUSY_TIMEOUT_S) -> Engine:
    if url.get_backend_name() != "sqlite":
        is_libpq = url.get_driver_name() in ("psycopg", "psycopg2")
        arguments = _libpq_arguments(url, patience_s) if is_libpq else {}
        return create_engine(
            url,
            pool_pre_ping=True,
            hide_parameters=True,
            connect_args=arguments,
            json_deserializer=_lenient_json,
        )
    if url.database is None or url.database == ":memory:":
        raise ArgumentError("a registry in memory cannot be shared by processes; give a file")
    # SQLite gives -wal and -shm the mode of the database file.
    os.close(os.open(url.database, os.O_RDWR | os.O_CREAT, 0o600))
    os.chmod(url.database, 0o600)
    engine = create_engine(
        url,
        hide_parameters=True,
        connect_args={"timeout": patience_s},
        json_deserializer=_lenient_json,
    )
    event.listen(engine, "connect", lambda connection, record: _set_up_sqlite(connection, is_durable))
    event.listen(engine, "begin", _begin_sqlite)
    return engine


def _lenient_json(text: str) -> object:
    """What is no JSON, as half a row of an older release, reads as nothing: one row must not stop a site."""
    try:
        return json.loads(text)
    except ValueError:
        return None


def _libpq_arguments(url: URL, lock_timeout_s: float) -> dict[str, Any]:
    """Ours, but for what the operator's URL says: its options come later and so count."""
    ours: dict[str, Any] = {name: v for name, v in _LIBPQ_PATIENCE.items() if name not in url.query}
    # Of the server: a client that hangs in a transaction holds up the others no longer than this.
    options = f"-c idle_in_transaction_session_timeout=60s -c lock_timeout={int(lock_timeout_s * 1000)}"
    given = url.query.get("options")
    return {**ours, "options": f"{options} {given}" if isinstance(given, str) else options}


def _set_up_sqlite(connection: sqlite3.Connection, is_durable: bool) -> None:
    connection.isolation_level = None  # the driver begins nothing by itself; `_begin_sqlite` does
    connection.execute("PRAGMA foreign_keys=ON")
    # NORMAL in WAL mode: no corruption, and the disk is waited for at checkpoints only.
    connection.execute(f"PRAGMA synchronous={'FULL' if is_durable else 'NORMAL'}")


def _begin_sqlite(connection: Connection) -> None:
    read_only = connection.get_execution_options().get(_READ_ONLY, False)
    connection.exec_driver_sql("BEGIN" if read_only else "BEGIN IMMEDIATE")


def _reading_options(engine: Engine) -> dict[str, Any]:
    snapshot = {"isolation_level": "REPEATABLE READ"} if engine.dialect.name == "postgresql" else {}
    return {_READ_ONLY: True, **snapshot}


def _with_driver(url: URL) -> URL:
    """Psycopg 3, where the URL names none, with every release of SQLAlchemy. Raises: ConfigError."""
    if url.get_backend_name() not in ("sqlite", "postgresql"):
        raise ConfigError(
            f"database_url begins with {url.drivername}:; write sqlite:///FILE or postgresql://USER@HOST/NAME"
        )
    return url.set(drivername="postgresql+psycopg") if url.drivername == "postgresql" else url


def back_up(file: Path, revision: str) -> Path:
    """A copy of an SQLite registry beside it, named after its revision; others may use it meanwhile."""
    copy = file.with_name(f"{file.name}.before-upgrade-of-{revision}")
    copy_sqlite(file, copy)
    return copy


def copy_sqlite(file: Path, to: Path) -> None:
    """By SQLite's own means: a plain copy would miss what is in the WAL."""
    temporary = to.with_name(f"{to.name}.partial")
    temporary.unlink(missing_ok=True)
    try:
        os.close(os.open(temporary, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600))
        with closing(sqlite3.connect(file)) as source, closing(sqlite3.connect(temporary)) as target:
            source.backup(target)
        temporary.replace(to)
    finally:
        temporary.unlink(missing_ok=True)  # one that was cut off keeps the room that others need


@contextmanager
def _opening_lock(engine: Engine) -> Iterator[Connection]:
    """A transaction beside which no other process opens or upgrades this registry."""
    if engine.dialect.name != "sqlite":
        with engine.begin() as connection:
            connection.execute(text("SELECT pg_advisory_xact_lock(:key)"), {"key": _UPGRADE_LOCK_KEY})
            yield connection
        return
    # A lock file besides SQLite's own locks: of processes that switch a new file to WAL together some get
    # "database is locked" at once, whatever the busy timeout (5 of 360, six processes at a time).
    path = f"{engine.url.database}.lock"
    with open(os.open(path, os.O_RDWR | os.O_CREAT, 0o600), "r+") as file:
        _take_opening_lock(file, path)
        with closing(sqlite3.connect(str(engine.url.database), timeout=BUSY_TIMEOUT_S)) as plain:
            plain.execute("PRAGMA journal_mode=WAL")  # stays in the file
        with engine.begin() as connection:
            yield connection


def _take_opening_lock(file: TextIO, path: str) -> None:
    """Raises: ConfigError naming who holds it for too long, as one that was stopped."""
    deadline_s = time.monotonic() + OPENING_TIMEOUT_S
    while True:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            break
        except BlockingIOError:
            if time.monotonic() >= deadline_s:
                holder = file.read().strip() or "unknown"
                raise ConfigError(
                    f"{path} has been held for {OPENING_TIMEOUT_S:g} s by another process that opens or "
                    f"upgrades this registry (pid {holder}); see whether it hangs, and end it"
                ) from None
        time.sleep(0.02)
    write_holder(file.fileno(), str(os.getpid()))


def revision_of(connection: Connection) -> str | None:
    """None: it has no tables yet."""
    if not inspect(connection).has_table("alembic_version"):
        return None
    return connection.execute(text("SELECT version_num FROM alembic_version")).scalar()


@contextmanager
def connecting(url: str) -> Iterator[Connection]:
    """One connection, without an upgrade. Raises: ConfigError for an address that cannot be opened."""
    with _engine(url) as engine, engine.connect() as connection:
        yield connection


@contextmanager
def making(url: str) -> Iterator[Connection]:
    """One transaction that makes the tables, and what the block puts into them: all of it, or nothing.

    Raises: ConfigError for an address that cannot be opened.
    """
    with _engine(url) as engine, _opening_lock(engine) as connection:
        upgrade_to_head(connection)
        yield connection


@contextmanager
def _engine(url: str) -> Iterator[Engine]:
    try:
        engine = _create_engine(_with_driver(make_url(url)), is_durable=False)
    except (ArgumentError, ModuleNotFoundError, OSError) as error:
        raise ConfigError(f"database {_hidden(url)} cannot be opened: {error}") from error
    try:
        yield engine
    finally:
        engine.dispose()


def sqlite_file(url: str) -> Path | None:
    """The file of an SQLite registry; None of another kind."""
    try:
        parsed = make_url(url)
    except ArgumentError as error:
        raise ConfigError(f"database {_hidden(url)} cannot be opened: {error}") from error
    is_file = parsed.get_backend_name() == "sqlite" and parsed.database
    return Path(str(parsed.database)) if is_file else None


def _hidden(url: str) -> str:
    try:
        return without_logins(make_url(url).render_as_string(hide_password=True))
    except ArgumentError:
        return repr(url)
