"""`trivet db upgrade --check` where the answer is no: a sentence, and nothing has changed."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from sqlalchemy import Connection, create_engine

from trivet.errors import ConfigError
from trivet_registry import migrations, upgrading
from trivet_registry.database import open_database
from trivet_registry.events_store import list_events, record_event
from trivet_registry.upgrading import check_upgrade, upgrade

TRIVET = str(Path(sys.executable).with_name("trivet"))


def run(url: str, home: Path, *options: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [TRIVET, "db", "upgrade", *options, "--database-url", url],
        env={**os.environ, "TRIVET_HOME": str(home)},
        capture_output=True,
        text=True,
        timeout=120,
    )


@pytest.fixture
def old(registry_url: str) -> str:
    """A registry with one event, which says that it is of an earlier revision."""
    database = open_database(registry_url)
    with database.session() as session:
        record_event(session, "deployment", "launch", deployment="chat")
        session.connection().exec_driver_sql("UPDATE alembic_version SET version_num = '0001'")
    database.close()
    return registry_url


def test_a_migration_that_fails_is_told_and_undone(old: str) -> None:
    """Its tables are there already."""
    for attempt in (check_upgrade, upgrade):
        with pytest.raises(
            ConfigError, match=rf"cannot be upgraded to {migrations.HEAD}: .+; see `trivet doc"
        ):
            attempt(old)
    engine = create_engine(old)
    with engine.connect() as connection:
        assert connection.exec_driver_sql("SELECT version_num FROM alembic_version").scalar() == "0001"
    engine.dispose()


def test_an_upgrade_that_would_lose_rows_is_refused(old: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def lose(connection: Connection) -> None:
        connection.exec_driver_sql("DELETE FROM events")

    monkeypatch.setattr(upgrading, "upgrade_to_head", lose)
    for attempt in (check_upgrade, upgrade):
        with pytest.raises(ConfigError, match=r"from 0001 to \d+ would lose rows: events 1 to 0; report it"):
            attempt(old)
    engine = create_engine(old)
    with engine.connect() as connection:
        assert connection.exec_driver_sql("SELECT count(*) FROM events").scalar() == 1
    engine.dispose()


def test_a_damaged_file_is_told_in_a_sentence(tmp_path: Path) -> None:
    file = tmp_path / "registry.db"
    file.write_bytes(b"\xff" * 8192)
    for options in (["--check"], []):
        done = run(f"sqlite:///{file}", tmp_path / "home", *options)
        assert done.returncode == 2
        told = (
            f"trivet: the registry cannot be upgraded to {migrations.HEAD}: file is not a database; see `triv"
        )
        assert done.stderr.startswith(told)
        assert done.stderr.count("\n") == 1
    assert file.read_bytes() == b"\xff" * 8192


def test_what_is_no_file_is_told_in_a_sentence(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"cannot be upgraded to \d+: unable to open database file; see"):
        check_upgrade(f"sqlite:///{tmp_path}")


def test_the_command_line_says_what_it_found_and_did(tmp_path: Path) -> None:
    url, head = f"sqlite:///{tmp_path / 'registry.db'}", migrations.HEAD
    assert (
        run(url, tmp_path, "--check").stdout == f"the upgrade from nothing to {head} works; 0 rows are kept\n"
    )
    assert not (tmp_path / "registry.db").exists()
    assert run(url, tmp_path).stdout == f"upgraded from nothing to {head}; 0 rows are kept\n"
    database = open_database(url)
    with database.session() as session:
        record_event(session, "deployment", "launch", deployment="chat")
    with database.reading() as session:
        assert len(list_events(session)) == 1
    database.close()
    done = run(url, tmp_path, "--check")
    assert done.returncode == 0
    assert re.fullmatch(rf"the registry is at {head}, the newest revision; [1-9]\d* rows\n", done.stdout)
