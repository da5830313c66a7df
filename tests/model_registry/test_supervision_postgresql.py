"""The claim of a supervisor on a real PostgreSQL server, which may end a session at any time."""

from __future__ import annotations

import os
import pwd
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from sqlalchemy import text
from sqlalchemy.exc import DBAPIError

from trivet.errors import Conflict
from trivet_registry.database import Database, open_database
from trivet_registry.supervision import _CLAIM_KEY, _HOLDER, SupervisionLost, claim_supervision

DEADLINE_S = 120
pytestmark = pytest.mark.postgres


class PostgresServer:
    """From the binaries of this host, with its data in `folder`, reached by a Unix socket only."""

    def __init__(self, binaries: Path, folder: str) -> None:
        self.url = f"postgresql+psycopg://trivet@/postgres?host={folder}"
        self._binaries, self._folder = binaries, folder
        self._data = f"{folder}/data"
        self._user: str | None = None
        if os.geteuid() == 0:  # as which it refuses to run
            self._user = "nobody"
            os.chown(folder, pwd.getpwnam(self._user).pw_uid, -1)
        self._run("initdb", "-A", "trust", "-U", "trivet", "--no-sync")
        self.start()

    def start(self) -> None:
        options = f"-c listen_addresses= -c unix_socket_directories={self._folder} -c fsync=off"
        self._run("pg_ctl", "-l", f"{self._folder}/log", "-w", "-o", options, "start")

    def stop(self) -> None:
        self._run("pg_ctl", "-m", "immediate", "-w", "stop")

    def _run(self, program: str, *arguments: str) -> None:
        with open(os.devnull, "w") as nowhere:  # no pipe: the server would hold it open
            command = [str(self._binaries / program), "-D", self._data, *arguments]
            subprocess.run(
                command,
                user=self._user,
                cwd=self._folder,
                check=True,
                timeout=DEADLINE_S,
                stdout=nowhere,
                stderr=nowhere,
            )


@pytest.fixture(scope="module")
def server() -> Iterator[PostgresServer]:
    pytest.importorskip("psycopg", reason="psycopg, the driver of PostgreSQL, is not installed")
    debians = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"))
    initdb = shutil.which("initdb") or (debians[-1] if debians else None)
    if initdb is None:
        pytest.skip("no PostgreSQL server is installed here")
    with tempfile.TemporaryDirectory(prefix="pg") as folder:  # short: a socket's path holds 107 bytes
        server = PostgresServer(Path(initdb).parent, folder)
        yield server
        server.stop()


@pytest.fixture
def db(server: PostgresServer) -> Iterator[Database]:
    database = open_database(server.url)
    yield database
    database.close()


@pytest.fixture
def other(server: PostgresServer) -> Iterator[Database]:
    """Of another supervisor."""
    database = open_database(server.url)
    yield database
    database.close()


def end_the_session_with_the_lock(database: Database) -> None:
    """As an administrator may."""
    query = "SELECT pg_terminate_backend(pid, 60000) FROM pg_locks WHERE locktype = 'advisory'"
    with database.engine.begin() as connection:
        assert connection.execute(text(query)).all() == [(True,)]


def wait_until_no_session_has_the_lock(database: Database) -> None:
    """The server ends a session, and gives back its lock, some time after its client has left."""
    deadline_s = time.monotonic() + DEADLINE_S
    with database.engine.connect() as connection:
        while connection.execute(text("SELECT 1 FROM pg_locks WHERE locktype = 'advisory'")).all():
            assert time.monotonic() < deadline_s
            time.sleep(0.01)


def test_a_second_supervisor_is_refused_and_the_first_named(db: Database, other: Database) -> None:
    with (
        claim_supervision(db, "the first"),
        pytest.raises(Conflict, match="managed by the first on "),
        claim_supervision(other, "the second"),
    ):
        pass
    with claim_supervision(other, "the second, when the first has gone", patience_s=DEADLINE_S):
        pass


def test_a_lost_claim_is_taken_back_where_it_is_free(db: Database, other: Database) -> None:
    with claim_supervision(db, "the first") as claim:
        claim.check()
        end_the_session_with_the_lock(other)
        claim.check()
        with pytest.raises(Conflict), claim_supervision(other, "the second"):
            pass


def test_who_lost_its_claim_to_another_is_told(db: Database, other: Database) -> None:
    with claim_supervision(db, "the first") as claim:
        end_the_session_with_the_lock(other)
        with claim_supervision(other, "the second") as others:
            for _ in range(2):
                with pytest.raises(SupervisionLost, match="managed by the second on "):
                    claim.check()
            others.check()
        wait_until_no_session_has_the_lock(other)
        claim.check()


def test_a_claim_outlives_a_server_that_is_away_for_a_while(
    db: Database, other: Database, server: PostgresServer
) -> None:
    with claim_supervision(db, "the first") as claim:
        server.stop()
        for _ in range(3):  # a connection that is made anew has no lock, and must not answer for one that had
            with pytest.raises(DBAPIError):
                claim.check()
        server.start()
        claim.check()
        with pytest.raises(Conflict), claim_supervision(other, "the second"):
            pass


def test_the_supervisor_of_another_database_of_the_server_is_not_named(
    server: PostgresServer, db: Database
) -> None:
    # A transaction would go on seeing the activity of its first look.
    engine = db.engine.execution_options(isolation_level="AUTOCOMMIT")
    with engine.connect() as connection:
        connection.execute(text("CREATE DATABASE elsewhere"))
    elsewhere = open_database(server.url.replace("/postgres?", "/elsewhere?"))
    key = {"high": _CLAIM_KEY >> 32, "low": _CLAIM_KEY & 0xFFFFFFFF}
    with claim_supervision(elsewhere, "a stranger"), engine.connect() as connection:
        assert connection.execute(_HOLDER, key).all() == []
        with claim_supervision(db, "the first"):
            (named,) = connection.execute(_HOLDER, key).scalars()
            assert named.startswith("the first on ")
    elsewhere.close()
