"""One supervisor a registry: the claim that a second one is refused.

A claim is a lock that dies with its process. It can be lost while the process lives: a database ends the
session that holds it, or somebody deletes the lock's file. Whoever acts by it asks `check` before each turn.
"""

from __future__ import annotations

import fcntl
import logging
import os
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol, TextIO

from sqlalchemy import Connection, Engine, text
from sqlalchemy.exc import DBAPIError

from trivet.errors import Conflict, Unavailable
from trivet.lock_holder import write_holder
from trivet_registry.database import Database

logger = logging.getLogger(__name__)

_CLAIM_KEY = 0x747276737570  # "trvsup", of pg_try_advisory_lock
LOOK_INTERVAL_S = 0.1
MAX_SESSION_NAME = 63  # bytes of application_name; a host's name is ASCII
_HOLDER = text(
    "SELECT application_name FROM pg_stat_activity JOIN pg_locks USING (pid) "
    "WHERE locktype = 'advisory' AND classid = :high AND objid = :low AND granted "
    # Other databases of the server have locks of the same name.
    "AND database = (SELECT oid FROM pg_database WHERE datname = current_database())"
)
# The server forgets a client whose host is gone after 25 s; by default it holds the lock for two hours.
_SERVER_KEEPALIVE = {"tcp_keepalives_idle": 10, "tcp_keepalives_interval": 5, "tcp_keepalives_count": 3}


class SupervisionLost(Conflict):
    """Another supervisor manages this registry by now: to act on would be to act twice."""


class Claim(Protocol):
    """Held by one process."""

    def check(self) -> None:
        """Make sure that it is ours, taking it back where it was lost and is free.

        Raises: SupervisionLost; DBAPIError or OSError while that cannot be found out.
        """


@contextmanager
def claim_supervision(database: Database, holder: str, patience_s: float = 0.0) -> Iterator[Claim]:
    """Held until the block ends or the process dies.

    Args:
        patience_s: for a holder that is about to leave, as the supervisor of a serve that was killed.

    Raises:
        Conflict: naming the first holder, where the database can tell.
        Unavailable: the database or the folder of the lock cannot be reached.
    """
    lock = _LockFile if database.engine.dialect.name == "sqlite" else _SessionLock
    claim = lock(database.engine, holder)
    deadline_s = time.monotonic() + patience_s
    try:
        try:
            while not claim.take():
                if time.monotonic() >= deadline_s:
                    raise Conflict(f"this registry is managed by {claim.held_by()}; stop it first")
                time.sleep(LOOK_INTERVAL_S)
        except (DBAPIError, OSError) as error:
            cause = error.orig if isinstance(error, DBAPIError) else error
            raise Unavailable(
                f"the claim on this registry cannot be taken: {cause}; see `trivet doctor`"
            ) from error
        yield claim
    finally:
        claim.close()


class _LockFile:
    """flock(2) of a file beside the registry: the kernel gives it back when the process dies."""

    def __init__(self, engine: Engine, holder: str) -> None:
        self._path = f"{engine.url.database}.supervisor"
        self._holder = holder
        self._file: TextIO | None = None

    def take(self) -> bool:
        self.close()
        self._file = open(os.open(self._path, os.O_RDWR | os.O_CREAT, 0o600), "r+")  # noqa: SIM115  # a lock
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        write_holder(self._file.fileno(), self._holder)
        return True

    def held_by(self) -> str:
        return (self._file.read().strip() if self._file else "") or "another supervisor"

    def check(self) -> None:
        """Raises: SupervisionLost; OSError where the folder is gone."""
        if self._is_the_file():
            return
        logger.warning("file=%s was deleted: the claim is taken anew", self._path)
        if not self.take():
            raise SupervisionLost(
                f"this registry is managed by {self.held_by()}, which came when {self._path} was deleted"
            )

    def _is_the_file(self) -> bool:
        try:
            return self._file is not None and os.path.samestat(
                os.fstat(self._file.fileno()), os.stat(self._path)
            )
        except FileNotFoundError:
            return False

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None


class _SessionLock:
    """PostgreSQL's advisory lock of a session: gone when its connection is, whoever ended that."""

    def __init__(self, engine: Engine, holder: str) -> None:
        self._name = f"{holder} on {socket.gethostname()}"[:MAX_SESSION_NAME]
        # A transaction left open with the lock would hold up vacuuming for as long.
        self._engine = engine.execution_options(isolation_level="AUTOCOMMIT")
        self._connection: Connection | None = None
        self._is_held = False  # by that connection

    def take(self) -> bool:
        """Raises: DBAPIError."""
        try:
            if self._connection is None:
                self._connection = self._engine.connect()
                set_name = text("SELECT set_config('application_name', :name, false)")
                self._connection.execute(set_name, {"name": self._name})
                for name, value in _SERVER_KEEPALIVE.items():
                    self._connection.execute(text(f"SET {name} = {value}"))
            lock = text("SELECT pg_try_advisory_lock(:key)")
            self._is_held = bool(self._connection.execute(lock, {"key": _CLAIM_KEY}).scalar())
        except DBAPIError:
            self.close()  # SQLAlchemy would connect it again without a word, and without the lock
            raise
        return self._is_held

    def held_by(self) -> str:
        """As its session is named."""
        if self._connection is None:
            return "another supervisor"
        key = {"high": _CLAIM_KEY >> 32, "low": _CLAIM_KEY & 0xFFFFFFFF}
        return self._connection.execute(_HOLDER, key).scalar() or "another supervisor"

    def check(self) -> None:
        """Raises: SupervisionLost; DBAPIError."""
        if self._connection is not None and self._is_held:
            try:
                self._connection.execute(text("SELECT 1"))
                return
            except DBAPIError as error:
                logger.warning("the session that holds the claim has ended: %s", error.orig)
                self.close()
        if not self.take():
            raise SupervisionLost(
                f"this registry is managed by {self.held_by()}, which came when our session was ended"
            )
        logger.warning("the claim is held again")

    def close(self) -> None:
        """The session ends: it must not go back to the pool with the lock."""
        self._is_held = False
        if self._connection is not None:
            connection, self._connection = self._connection, None
            connection.invalidate()
            connection.close()
