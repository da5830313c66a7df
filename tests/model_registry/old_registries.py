"""Registries as earlier releases left them."""

from __future__ import annotations

from pathlib import Path

from alembic import command
from alembic.config import Config
from sqlalchemy import create_engine, text

from trivet_registry import migrations

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
        if engine.dialect.name == "sqlite":
            connection.execute(text("PRAGMA foreign_keys=ON"))
            connection.commit()
        with connection.begin():
            scripts.attributes["connection"] = connection
            (command.upgrade if is_upgrade else command.downgrade)(scripts, to)
            for statement in statements:
                connection.exec_driver_sql(statement)
    engine.dispose()
