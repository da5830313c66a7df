"""`trivet db upgrade`: brings a registry to this release's tables, after a try that changes nothing."""

from __future__ import annotations

import contextlib
import sqlite3
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from sqlalchemy import Connection, inspect, text
from sqlalchemy.exc import DBAPIError

from trivet.errors import ConfigError
from trivet_registry.database import (
    connecting,
    copy_sqlite,
    open_database,
    revision_of,
    sqlite_file,
)
from trivet_registry.migrations import HEAD, upgrade_to_head


@dataclass(frozen=True, slots=True)
class Upgrade:
    """What an upgrade does, or did."""

    before: str | None  # None: there are no tables yet
    after: str
    num_rows: int  # of all tables that were there: as many as before
    backup: Path | None = None


def check_upgrade(url: str) -> Upgrade:
    """Upgrade a copy of an SQLite registry; PostgreSQL's in a transaction that is rolled back.

    Raises: ConfigError where it cannot be upgraded, with the reason, or rows would be lost.
    """
    try:
        return _checked(url)
    except (DBAPIError, sqlite3.Error, OSError) as error:  # damaged, locked for long, no room for a copy
        cause = error.orig if isinstance(error, DBAPIError) else error
        raise ConfigError(
            f"the registry cannot be upgraded to {HEAD}: {cause}; see `trivet doctor`"
        ) from error


def _checked(url: str) -> Upgrade:
    file = sqlite_file(url)
    if file is None:
        with _rolled_back(url) as connection:
            return _tried(connection)
    if not file.exists():
        return Upgrade(None, HEAD, 0)
    with tempfile.TemporaryDirectory(prefix="trivet-upgrade-") as folder:
        copy = Path(folder) / "registry.db"
        copy_sqlite(file, copy)
        with _rolled_back(f"sqlite:///{copy}") as connection:
            return _tried(connection)


def upgrade(url: str) -> Upgrade:
    """Check, then upgrade. Of SQLite a copy stays beside it. Raises: ConfigError."""
    checked = check_upgrade(url)
    open_database(url).close()
    file = sqlite_file(url)
    backup = None
    if file is not None and checked.before not in (None, HEAD):
        backup = file.with_name(f"{file.name}.before-upgrade-of-{checked.before}")
    return Upgrade(checked.before, checked.after, checked.num_rows, backup)


@contextlib.contextmanager
def _rolled_back(url: str) -> Iterator[Connection]:
    with connecting(url) as connection, connection.begin() as transaction:
        yield connection
        transaction.rollback()


def _tried(connection: Connection) -> Upgrade:
    before = revision_of(connection)
    counts = _counts(connection)
    if before != HEAD:
        upgrade_to_head(connection)
    after = _counts(connection)
    lost = [
        f"{table} {count} to {after.get(table, 0)}"
        for table, count in counts.items()
        if after.get(table, 0) < count
    ]
    if lost:
        raise ConfigError(
            f"the upgrade from {before} to {HEAD} would lose rows: {', '.join(lost)}; report it"
        )
    return Upgrade(before, HEAD, sum(counts.values()))


def _counts(connection: Connection) -> dict[str, int]:
    tables = [name for name in inspect(connection).get_table_names() if name != "alembic_version"]
    quoted = {name: connection.dialect.identifier_preparer.quote(name) for name in tables}
    return {
        name: int(connection.scalar(text(f"SELECT count(*) FROM {q}")) or 0) for name, q in quoted.items()
    }
