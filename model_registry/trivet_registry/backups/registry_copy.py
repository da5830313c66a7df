"""A registry of any database as an SQLite file, and back."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from sqlalchemy import Connection, Table, func, insert, inspect, select, text
from sqlalchemy.exc import DBAPIError

import trivet_registry.account_tables  # noqa: F401 (its tables are in the metadata, too)
from trivet.errors import ConfigError, Conflict
from trivet_registry.database import connecting, copy_sqlite, making, revision_of, sqlite_file
from trivet_registry.migrations import HEAD
from trivet_registry.tables import Base

ROWS_AT_ONCE = 500
# What SQLite keeps beside a file and a crash leaves there. It would be taken for a part of the next file of
# that name, whose changes it would undo without a word.
BESIDE = ("-wal", "-shm", "-journal")


def save_registry(url: str, to: Path) -> None:
    """Write the registry, as it is at one moment, to a new SQLite file; others may use it meanwhile.

    Raises: ConfigError where there is none, or PostgreSQL's is of another release.
    """
    require_registry(url)
    file = sqlite_file(url)
    if file is not None:
        with _telling():
            copy_sqlite(file, to)
        return
    with _telling(), connecting(url) as connection:
        source = connection.execution_options(isolation_level="REPEATABLE READ", postgresql_readonly=True)
        found = revision_of(source)
        if found != HEAD:
            raise ConfigError(
                f"the registry is at revision {found or 'nothing'} and this release reads {HEAD}; back it up "
                "with the release that serves it, or upgrade it first (trivet db upgrade)"
            )
        _copy_to(f"sqlite:///{to}", source)


def require_registry(url: str) -> None:
    """Raises: ConfigError where SQLite's file is not there; another database is asked when it is read."""
    file = sqlite_file(url)
    if file is not None and not file.exists():
        raise ConfigError(f"there is no registry at {file}; is TRIVET_HOME the home of the site?")


def require_no_registry(url: str) -> None:
    """Raises: Conflict where there is one; ConfigError where the database cannot be reached."""
    file = sqlite_file(url)
    if file is not None:
        here = [str(one) for one in (file, *(Path(f"{file}{end}") for end in BESIDE)) if one.exists()]
        if here:
            raise Conflict(
                f"{', '.join(here)} {'exists' if len(here) == 1 else 'exist'}; a backup is restored beside "
                "nothing: move away all of it first"
            )
        return
    with _telling(), connecting(url) as connection:
        tables = inspect(connection).get_table_names()
    if tables:
        raise Conflict(
            f"the database has tables ({', '.join(sorted(tables)[:3])}, ...); a backup is restored into an "
            "empty one"
        )


def load_registry(file: Path, url: str) -> None:
    """Make the registry at `url`, where there is none, from an SQLite file of this release: whole, or not.

    Raises: ConfigError.
    """
    target = sqlite_file(url)
    with _telling():
        if target is not None:
            target.parent.mkdir(parents=True, exist_ok=True)
            copy_sqlite(file, target)
            return
        with connecting(f"sqlite:///{file}") as connection:
            _copy_to(url, connection)


@contextmanager
def _telling() -> Iterator[None]:
    """Raises: ConfigError instead of what databases raise."""
    try:
        yield
    except (DBAPIError, sqlite3.Error) as error:
        cause = error.orig if isinstance(error, DBAPIError) else error
        raise ConfigError(f"the registry cannot be copied: {cause}; see `trivet doctor`") from error


def _copy_to(url: str, source: Connection) -> None:
    with making(url) as target:
        tables = Base.metadata.sorted_tables  # what is referred to comes first
        for table in reversed(tables):  # rows that migrations make
            target.execute(table.delete())
        for table in tables:
            for rows in source.execute(select(table)).mappings().partitions(ROWS_AT_ONCE):
                target.execute(insert(table), [dict(row) for row in rows])
        for table in tables:
            if counted_column(table) is not None:
                _give_none_again(target, table, _newest_id(source, table))


def counted_column(table: Table) -> str | None:
    """The column whose values the database counts up itself."""
    column = table.autoincrement_column
    return None if column is None else column.name


def _newest_id(connection: Connection, table: Table) -> int:
    """That was ever given, as far as the database tells; else the largest that is there."""
    column = table.c[str(counted_column(table))]
    largest = int(connection.scalar(select(func.max(column))) or 0)
    if connection.dialect.name == "postgresql":
        sequence = connection.scalar(
            text("SELECT pg_get_serial_sequence(:table, :column)"),
            {"table": table.name, "column": column.name},
        )
        given = connection.scalar(
            text(f"SELECT CASE WHEN is_called THEN last_value ELSE 0 END FROM {sequence}")
        )
    else:
        given = connection.scalar(
            text("SELECT seq FROM sqlite_sequence WHERE name = :table"), {"table": table.name}
        )
    return max(largest, int(given or 0))


def _give_none_again(connection: Connection, table: Table, newest: int) -> None:
    """The next id is larger than `newest`, where the table keeps to that."""
    if newest == 0:
        return
    if connection.dialect.name == "postgresql":
        connection.execute(
            text("SELECT setval(pg_get_serial_sequence(:table, :column), :newest)"),
            {"table": table.name, "column": counted_column(table), "newest": newest},
        )
    elif table.dialect_options["sqlite"]["autoincrement"]:
        connection.execute(text("DELETE FROM sqlite_sequence WHERE name = :table"), {"table": table.name})
        connection.execute(
            text("INSERT INTO sqlite_sequence (name, seq) VALUES (:table, :newest)"),
            {"table": table.name, "newest": newest},
        )
