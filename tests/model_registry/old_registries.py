"""Registries as earlier releases left them."""

from __future__ import annotations

from pathlib import Path

from alembic import command
from alembic.config import Config
from sqlalchemy import create_engine, text

from trivet_registry import migrations

AT = "'2026-01-01 00:00:00'"
ROWS = (  # in the columns of 0001, which every later revision has
    f"""INSERT INTO models (name, created_at) VALUES ('tiny', {AT})""",
    f"""INSERT INTO versions (model_id, version, path, format, architecture, size_bytes, context_length,
        files, fingerprint, source, created_at)
        VALUES (1, 1, '/m', 'gguf', 'llama', 4, 2048, '[]', 'f', 'local', {AT})""",
    f"""INSERT INTO deployments (name, version_id, backend, replicas, settings, desired, generation,
        created_at, updated_at)
        VALUES ('chat', 1, 'auto', 2, '{{"max_num_seqs": "4"}}', 'running', 3, {AT}, {AT})""",
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
ENTRIES = (  # of the audit log, with the hashes that a release of then wrote
    "194d0bafb62a5ba01cb1f082dd97a584277533671687a9c83d533616f953bacb",
    "ab0def7bf8a580151a9feb9ff7cdc9f881d47290c100cd825a92b8da9141fd9f",
)
ROWS_OF = {  # by the revision that made their tables; ids are the database's, which so knows which it gave
    "0001": ROWS,
    "0005": (
        f"""INSERT INTO users (name, role, password_hash, created_at) VALUES ('root', 'admin', 'x', {AT})""",
        f"""INSERT INTO sessions (hash, user_id, created_at, last_seen_at, expires_at, address, user_agent)
            VALUES ('s', 1, {AT}, {AT}, '2100-01-01 00:00:00', '', '')""",
        f"""INSERT INTO api_keys (name, prefix, hash, user_id, scopes, models, created_at)
            VALUES ('k', 'sk-tv-', 'h', 1, '["infer"]', NULL, {AT})""",
        f"""INSERT INTO login_attempts (bucket, failures, strikes, since) VALUES ('b', 3, 1, {AT})""",
        f"""INSERT INTO audit_log
            (id, at, actor, action, target, outcome, address, request_id, before, after, hash)
            VALUES (1, {AT}, 'the setup link', 'site.set_up', 'user root', 'done', '127.0.0.1', 'r1', NULL,
            '{{"role":"admin"}}', '{ENTRIES[0]}'),
            (2, {AT}, 'user root', 'key.create', 'key 1', 'done', '127.0.0.1', 'r2', NULL,
            '{{"name":"k"}}', '{ENTRIES[1]}')""",
        f"""UPDATE audit_head SET last_id = 2, hash = '{ENTRIES[1]}'""",
        """INSERT INTO usage (day, key_id, user_id, model, requests, prompt_tokens, cached_tokens,
            completion_tokens) VALUES ('2026-01-01', 1, 1, 'chat', 1, 9, 0, 2)""",
    ),
    "0006": (
        f"""INSERT INTO versions (model_id, version, path, format, architecture, size_bytes, context_length,
            files, fingerprint, source, created_at, digests, digest, is_stored, signed_by, signed_version)
            VALUES (1, 2, '/home/models/trees/{"ab" * 32}/m.gguf', 'gguf', 'llama', 4, 2048, '[]', 'g',
            'hf:org/m@c', {AT}, '{{"m.gguf": "{"cd" * 32}"}}', '{"ab" * 32}', TRUE, 'key', 7)""",
        f"""INSERT INTO aliases (model_id, name, version_id, updated_at) VALUES (1, 'prod', 2, {AT})""",
        f"""INSERT INTO alias_moves (model_id, alias, from_version, to_version, at)
            VALUES (1, 'prod', NULL, 1, {AT}), (1, 'prod', 1, 2, {AT})""",
    ),
    "0007": (
        f"""INSERT INTO pulls
            (id, source, state, message, done_bytes, total_bytes, version, is_cancelled, created_at)
            VALUES ('running1', 'hf:org/m', 'running', '', 5, 9, NULL, FALSE, {AT}),
            ('done1', 'hf:org/m', 'done', '', 9, 9, 'tiny:2', FALSE, {AT})""",
    ),
    "0009": (f"""INSERT INTO login_places (place, seen_at) VALUES ('p', {AT})""",),
    "0012": (
        f"""INSERT INTO fences (lease, host, instance_id, deployment, pid, since, why, engine)
            VALUES ('given-up', 'b', 'ab', 'chat', 9, {AT}, 'no route', '{{"pid": 9}}')""",
    ),
}


def left_by(url: str, revision: str, statements: tuple[str, ...] = ()) -> None:
    """As a release of that revision left it; `statements` come right after the first rows."""
    for step, rows in ROWS_OF.items():
        if step <= revision:
            moved(url, step, is_upgrade=True, statements=(*rows, *statements))
            statements = ()
    moved(url, revision, is_upgrade=True)


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
