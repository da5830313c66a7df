"""One supervisor a registry: the claim that a second one is refused."""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TextIO

from sqlalchemy import text

from trivet.errors import Conflict
from trivet_registry.database import Database

_CLAIM_KEY = 0x747276737570  # "trvsup", of pg_try_advisory_lock


LOOK_INTERVAL_S = 0.1


@contextmanager
def claim_supervision(database: Database, holder: str, patience_s: float = 0.0) -> Iterator[None]:
    """Held until the block ends or the process dies.

    Args:
        patience_s: for a holder that is about to leave, as the supervisor of a serve that was killed.

    Raises: Conflict naming the first holder, where the database can tell.
    """
    deadline_s = time.monotonic() + patience_s
    if database.engine.dialect.name != "sqlite":
        # The lock is the session's; a transaction left open with it would hold up vacuuming for as long.
        autocommit = database.engine.execution_options(isolation_level="AUTOCOMMIT")
        with autocommit.connect() as connection:
            while not connection.execute(
                text("SELECT pg_try_advisory_lock(:key)"), {"key": _CLAIM_KEY}
            ).scalar():
                if time.monotonic() >= deadline_s:
                    raise Conflict("another supervisor manages this registry; stop it first")
                time.sleep(LOOK_INTERVAL_S)
            yield
        return
    with open(
        os.open(f"{database.engine.url.database}.supervisor", os.O_RDWR | os.O_CREAT, 0o600), "r+"
    ) as file:
        while not _is_locked(file):
            if time.monotonic() >= deadline_s:
                named = file.read().strip() or "another supervisor"
                raise Conflict(f"this registry is managed by {named}; stop it first")
            time.sleep(LOOK_INTERVAL_S)
        file.truncate()
        file.write(holder)
        file.flush()
        yield


def _is_locked(file: TextIO) -> bool:
    """By us, now."""
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
