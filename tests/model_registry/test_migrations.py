"""Registries of every earlier revision, with rows, are brought up to the newest and back."""

from __future__ import annotations

from pathlib import Path

import pytest
from alembic import command
from alembic.config import Config
from sqlalchemy import create_engine, text

from trivet_registry import migrations
from trivet_registry.database import open_database
from trivet_registry.deployments_store import get_deployment
from trivet_registry.devices_store import list_devices
from trivet_registry.events_store import list_events
from trivet_registry.instances_store import list_instances

EARLIER = ["0001", "0002", "0003", "0004", "0005", "0006"]
AT = "'2026-01-01 00:00:00'"
ROWS = (  # in the columns of 0001, which every later revision has
    f"""INSERT INTO models (id, name, created_at) VALUES (1, 'tiny', {AT})""",
    f"""INSERT INTO versions (id, model_id, version, path, format, architecture, size_bytes, context_length,
        files, fingerprint, source, created_at)
        VALUES (1, 1, 1, '/m', 'gguf', 'llama', 4, 2048, '[]', 'f', 'local', {AT})""",
    f"""INSERT INTO deployments (id, name, version_id, backend, replicas, settings, desired, generation,
        created_at, updated_at)
        VALUES (1, 'chat', 1, 'auto', 2, '{{"max_num_seqs": "4"}}', 'running', 3, {AT}, {AT})""",
    f"""INSERT INTO instances (id, deployment_id, version_id, generation, state, reason, device_uids, attempt,
        boot_failures, pid, process_start_time, lease, progress_done, progress_total, created_at, state_since,
        as_of)
        VALUES ('ab', 1, 1, 3, 'ready', 'serves', '["host"]', 1, 0, 17, 12.5, 'secret', 0, 0, {AT}, {AT},
        {AT})""",
    f"""INSERT INTO devices (kind, uid, device_index, name, arch, total_bytes, free_bytes, reserved_bytes,
        dtypes, versions, as_of)
        VALUES ('cpu', 'host', 0, 'a CPU', 'x86-64', 10, 5, 0, '[]', '{{}}', {AT})""",
    f"""INSERT INTO events (at, kind, deployment, reason) VALUES ({AT}, 'deployment', 'chat', 'launch')""",
)


def moved(url: str, to: str, *, is_upgrade: bool, statements: tuple[str, ...] = ()) -> None:
    """With foreign keys on, as the product opens it: rebuilding a table then deletes what refers to it."""
    scripts = Config()
    scripts.set_main_option("script_location", str(Path(migrations.__file__).parent))
    scripts.set_main_option("path_separator", "os")
    engine = create_engine(url)
    with engine.connect() as connection:
        connection.execute(text("PRAGMA foreign_keys=ON"))
        connection.commit()
        with connection.begin():
            scripts.attributes["connection"] = connection
            (command.upgrade if is_upgrade else command.downgrade)(scripts, to)
            for statement in statements:
                connection.exec_driver_sql(statement)
    engine.dispose()


@pytest.mark.parametrize("revision", EARLIER)
def test_a_registry_of_an_earlier_release_keeps_what_it_knows(tmp_path: Path, revision: str) -> None:
    url = f"sqlite:///{tmp_path / 'registry.db'}"
    moved(url, "0001", is_upgrade=True, statements=ROWS)
    moved(url, revision, is_upgrade=True)
    database = open_database(url)
    with database.reading() as session:
        deployment, (instance,) = get_deployment(session, "chat"), list_instances(session)
        (device,), (event,) = list_devices(session), list_events(session)
    database.close()
    assert (deployment.replicas, deployment.settings) == (2, {"max_num_seqs": "4"})
    assert (deployment.alias, deployment.version.reference) == (None, "tiny:1")
    assert (deployment.version.digests, deployment.version.is_stored) == (None, False)
    assert (deployment.priority, deployment.fallback, deployment.is_asleep) == (0, None, False)
    assert deployment.first_generation == deployment.generation == 3, "what runs is no update in progress"
    assert (instance.pid, instance.lease, instance.process_start_time) == (17, "secret", 12.5), (
        "it is adopted"
    )
    assert (device.free_bytes, event.reason) == (5, "launch")


@pytest.mark.parametrize("revision", EARLIER)
def test_a_registry_can_be_taken_back(tmp_path: Path, revision: str) -> None:
    url = f"sqlite:///{tmp_path / 'registry.db'}"
    moved(url, "0001", is_upgrade=True, statements=ROWS)
    open_database(url).close()
    moved(url, revision, is_upgrade=False)
    engine = create_engine(url)
    with engine.connect() as connection:
        counts = [
            connection.exec_driver_sql(f"SELECT count(*) FROM {table}").scalar()
            for table in ("deployments", "instances", "devices", "events")
        ]
    engine.dispose()
    assert counts == [1, 1, 1, 1]


def test_every_earlier_revision_is_tried() -> None:
    assert [*EARLIER, migrations.HEAD] == [f"{n:04}" for n in range(1, len(EARLIER) + 2)]
