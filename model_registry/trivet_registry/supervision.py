"""One supervisor a registry: the claim that a second one is refused."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager

from sqlalchemy import text

from trivet.errors import Conflict
from trivet_registry.database import Database

_CLAIM_KEY = 0x747276737570  # "trvsup", of pg_try_advisory_lock


@contextmanager
def claim_supervision(database: Database, holder: str) -> Iterator[None]:
    """Held until the block ends or the process dies.

    Raises: Conflict naming the first holder, where the database can tell.
    """
    if database.engine.dialect.name != "sqlite":
        # The lock is the session's; a transaction left open with it would hold up vacuuming for as long.
        autocommit = database.engine.execution_options(isolation_level="AUTOCOMMIT")
        with autocommit.connect() as connection:
            if not connection.execute(
                text("SELECT pg_try_advisory_lock(:key)"), {"key": _CLAIM_KEY}
            ).scalar():
                raise Conflict("another supervisor manages this registry; stop it first")
            yield
        return
    with open(
        os.open(f"{database.engine.url.database}.supervisor", os.O_RDWR | os.O_CREAT, 0o600), "r+"
    ) as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise Conflict(
                f"this registry is managed by {file.read().strip() or 'another supervisor'}; stop it first"
            ) from None
        file.truncate()
        file.write(holder)
        file.flush()
        yield
