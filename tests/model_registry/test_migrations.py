"""Registries of every earlier revision, with rows, are brought up to the newest and back."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from datetime import date
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from sqlalchemy import create_engine, select
from sqlalchemy.orm import Session

from trivet.config import Settings
from trivet.errors import ConfigError, DoesNotFit
from trivet_registry import migrations
from trivet_registry.account_tables import LoginAttempts, LoginSession, Usage
from trivet_registry.aliases_store import alias_history, roll_back_alias, set_alias
from trivet_registry.audit_log import Act, Verdict, append, verify
from trivet_registry.database import Database, open_database
from trivet_registry.deployments_store import get_deployment, stop_deployment
from trivet_registry.devices_store import list_devices
from trivet_registry.events_store import list_events
from trivet_registry.instances_store import list_instances
from trivet_registry.keys_store import KeySettings, create_key, list_keys
from trivet_registry.models_store import version_files
from trivet_registry.pulls_store import end_lost, list_pulls
from trivet_registry.references import find_version
from trivet_registry.served import has_served, is_given_up, newest_rules, served_rules
from trivet_registry.tables import BundleNumber, VersionNumber
from trivet_registry.upgrading import check_upgrade, upgrade
from trivet_registry.usage_store import list_usage
from trivet_registry.users_store import create_user, list_users, remove_user
from trivet_supervisor.means import Means
from trivet_supervisor.reconcile import Reconciler
from trivet_web.engines.registry_view import table_reader

sys.path.append(str(Path(__file__).parent))  # old_registries
from old_registries import AT, ENTRIES, ROWS, left_by, moved

EARLIER = [
    "0001",
    "0002",
    "0003",
    "0004",
    "0005",
    "0006",
    "0007",
    "0008",
    "0009",
    "0010",
    "0011",
    "0012",
    "0013",
    "0014",
    "0015",
]


Old = Callable[[str], str]


@pytest.fixture
def old(tmp_path: Path, registries: Any) -> Old:
    """A function of a revision: the URL of a registry as a release of then left it."""

    def make(revision: str) -> str:
        url: str = registries.copy(tmp_path, f"of-{revision}", partial(left_by, revision=revision))
        return url

    return make


@pytest.mark.parametrize("revision", EARLIER)
def test_a_registry_of_an_earlier_release_keeps_what_it_knows(old: Old, revision: str) -> None:
    database = open_database(old(revision))
    with database.reading() as session:
        deployment, (instance,) = get_deployment(session, "chat"), list_instances(session)
        (device,), (event,) = list_devices(session), list_events(session)
    database.close()
    assert (deployment.replicas, deployment.settings) == (2, {"max_num_seqs": "4"})
    assert (deployment.alias, deployment.version.reference) == (None, "tiny:1")
    assert (deployment.version.digests, deployment.version.is_stored) == (None, False)
    assert (deployment.priority, deployment.fallback, deployment.is_asleep) == (0, None, False)
    assert deployment.first_generation == deployment.generation == 3, "what runs is no update in progress"
    assert served_rules(deployment) == newest_rules(deployment), "its instance is ready"
    assert has_served(instance)
    assert (instance.pid, instance.lease, instance.process_start_time) == (17, "secret", 12.5), (
        "it is adopted"
    )
    assert (device.free_bytes, event.reason) == (5, "launch")


@pytest.mark.parametrize("revision", EARLIER)
def test_a_registry_can_be_taken_back(old: Old, revision: str) -> None:
    url = old(migrations.HEAD)
    moved(url, revision, is_upgrade=False)
    engine = create_engine(url)
    with engine.connect() as connection:
        counts = [
            connection.exec_driver_sql(f"SELECT count(*) FROM {table}").scalar()
            for table in ("deployments", "instances", "devices", "events")
        ]
    engine.dispose()
    assert counts == [1, 1, 1, 1]


@pytest.mark.parametrize("revision", EARLIER)
def test_accounts_aliases_and_pulls_of_an_earlier_release_go_on(
    old: Old, revision: str, tmp_path: Path
) -> None:
    database = open_database(old(revision))
    with database.reading() as session:
        is_logged = revision >= "0005"
        assert verify(session) == Verdict(2, ENTRIES[1]) if is_logged else verify(session).fault is None
        if is_logged:
            (user,), (key,), (usage,) = list_users(session), list_keys(session), _used(session)
            login = session.get(LoginSession, "s")
            assert (user.name, key.user, key.scopes, key.models) == ("root", user, ["infer"], None)
            assert login is not None
            assert (login.user, usage.prompt_tokens) == (user, 9)
        if revision >= "0006":
            version, moves = find_version(session, "tiny:prod"), alias_history(session, "tiny", "prod")
            assert (version.version, version.digests, version.is_stored) == (2, {"m.gguf": "cd" * 32}, True)
            assert [(move.from_version, move.to_version) for move in moves] == [(1, 2), (None, 1)]
    with database.session() as session:
        append(session, Act("user root", "model.remove"))
        session.add(LoginAttempts(bucket="new"))
        create_key(session, create_user(session, "new", "user", "x"), KeySettings("new"))
        if revision >= "0006":
            assert roll_back_alias(session, "tiny", "prod").version.version == 1
        if revision >= "0007":
            end_lost(session, tmp_path)
    with database.reading() as session:
        verdict = verify(session, f"2:{ENTRIES[1]}" if is_logged else None)
        assert (verdict.fault, verdict.last_id) == (None, 3 if is_logged else 1)
        states = {pull.id: pull.state for pull in list_pulls(session)}
        assert states == ({"running1": "failed", "done1": "done"} if revision >= "0007" else {})
    database.close()


def _used(session: Session) -> Sequence[Usage]:
    return list_usage(session, date(2026, 1, 1), date(2026, 1, 1))


class NoPlace:
    """Nothing fits."""

    def place(self, *_: object) -> Any:
        raise DoesNotFit("no device has room")


def _means_without_processes(database: Database, home: Path) -> Means:
    settings = Settings(home=str(home))
    settings.paths.create()
    launcher = SimpleNamespace(
        find=lambda lease, log_file, host: None,
        adopt=lambda identity, lease, log_file: None,
        discard=lambda instance_id, lease: None,
    )
    wire = SimpleNamespace(beats=list, forget=lambda instance_id: None)
    return Means(database, settings, cast("Any", launcher), cast("Any", wire), lambda: 1000.0)


HALF_WRITTEN = (  # as a release that crashed, or a hand, may have left them
    """UPDATE versions SET files = 'null', quantization = NULL""",
    """UPDATE instances SET state = 'loading', device_uids = 'null', plan = 'null', pid = NULL""",
    """UPDATE deployments SET settings = 'null', device = 'GPU-gone'""",
    """DELETE FROM devices""",
    """UPDATE events SET deployment = NULL, reason = ''""",
)


@pytest.mark.parametrize("revision", EARLIER)
def test_rows_that_are_half_written_hold_up_no_upgrade_no_request_and_no_turn(
    empty_registry_url: str, revision: str, tmp_path: Path
) -> None:
    left_by(empty_registry_url, revision, HALF_WRITTEN)
    database = open_database(empty_registry_url)
    with database.reading() as session:
        (instance,), version = list_instances(session), find_version(session, "tiny:1")
        assert (instance.state, instance.plan, instance.version.reference) == ("loading", None, "tiny:1")
        assert version_files(version) == {}
    (row,) = table_reader(database)()["chat"].instances
    assert (row.state, row.device, row.max_model_len) == ("loading", "", None)
    with database.session() as session:
        (instance,) = list_instances(session)
        instance.plan, instance.backend, instance.state = {"total_bytes": 1}, "cpu", "ready"
    reconciler = Reconciler(_means_without_processes(database, tmp_path), NoPlace())
    for _ in range(5):
        reconciler.tick()
    with database.reading() as session:
        states = {i.id: (i.state, i.reason) for i in list_instances(session)}
        told = [event.reason for event in list_events(session) if event.kind == "supervisor"]
    fence = "host b answers again: pid 9 (chat, given up since 2026-01-01 00:00:00) had ended"
    assert told == ([fence] if revision >= "0012" else []), "no turn failed"
    assert states["ab"][0] == "pending"
    assert len(states) == 2, "one replica of two was there"
    with database.session() as session:
        set_alias(session, "tiny", "prod", "1")
        stop_deployment(session, "chat")
    database.close()


@pytest.mark.parametrize("revision", EARLIER)
def test_an_upgrade_is_tried_on_a_copy_and_leaves_one_behind(old: Old, revision: str) -> None:
    registry_url = old(revision)
    for _ in range(2):
        checked = check_upgrade(registry_url)
        assert (checked.before, checked.after) == (revision, migrations.HEAD)
    done = upgrade(registry_url)
    assert (done.before, done.num_rows) == (revision, checked.num_rows)
    assert check_upgrade(registry_url).before == migrations.HEAD
    if registry_url.startswith("sqlite"):
        assert done.backup is not None
        copy = create_engine(f"sqlite:///{done.backup}")
        with copy.connect() as connection:
            kept = connection.exec_driver_sql("SELECT version_num FROM alembic_version").scalar()
            assert (kept, connection.exec_driver_sql("SELECT count(*) FROM models").scalar()) == (revision, 1)
        copy.dispose()
        assert done.backup.stat().st_mode & 0o777 == 0o600


ACCOUNTS = (
    f"""INSERT INTO users (id, name, role, password_hash, created_at)
        VALUES (3, 'root', 'admin', 'x', {AT})""",
    f"""INSERT INTO sessions (hash, user_id, created_at, last_seen_at, expires_at, address, user_agent)
        VALUES ('s', 3, {AT}, {AT}, '2100-01-01 00:00:00', '', '')""",
    f"""INSERT INTO api_keys (id, name, prefix, hash, user_id, scopes, models, created_at)
        VALUES (2, 'k', 'sk-tv-', 'h', 3, '["infer"]', NULL, {AT})""",
    """INSERT INTO usage (day, key_id, user_id, model, requests, prompt_tokens, cached_tokens,
        completion_tokens) VALUES ('2026-01-01', 41, 17, 'm', 1, 1, 0, 1)""",
)


def test_accounts_are_kept_and_ids_of_who_was_removed_before_are_not_given_again(
    empty_registry_url: str, sqlite_only: None
) -> None:
    moved(empty_registry_url, "0008", is_upgrade=True, statements=ACCOUNTS)
    for _ in range(2):
        database = open_database(empty_registry_url)
        with database.session() as session:
            (key,) = list_keys(session)
            assert key.user is not None
            assert (key.id, key.user.name, key.scopes, key.models) == (2, "root", ["infer"], None)
            assert session.get(LoginSession, "s") is not None
            user = create_user(session, "new", "user", "x")
            row, _ = create_key(session, user, KeySettings("new"))
            made = user.id, row.id
            remove_user(session, user)
        database.close()
        moved(empty_registry_url, "0008", is_upgrade=False)
    assert made == (19, 43)


def test_a_newer_registry_is_refused_by_the_check_too(empty_registry_url: str) -> None:
    moved(
        empty_registry_url,
        "head",
        is_upgrade=True,
        statements=("UPDATE alembic_version SET version_num = '9999'",),
    )
    for attempt in (check_upgrade, upgrade):
        with pytest.raises(ConfigError, match="a newer Trivet may have upgraded it: install that version"):
            attempt(empty_registry_url)


def test_every_earlier_revision_is_tried() -> None:
    assert [*EARLIER, migrations.HEAD] == [f"{n:04}" for n in range(1, len(EARLIER) + 2)]


AGAIN = "no room; it has served before and is tried again every 60 s"


@pytest.mark.parametrize(("state", "reason", "needs_change"), [
    ("failed", "no such setting", True), ("failed", AGAIN, False), ("ready", "serves", False)
])  # fmt: skip
def test_what_had_failed_is_known_to_be_tried_again_or_not(
    empty_registry_url: str, state: str, reason: str, needs_change: bool
) -> None:
    written = f"UPDATE instances SET state = '{state}', reason = '{reason}', ready_at = created_at"
    left_by(empty_registry_url, "0015", (written,))
    database = open_database(empty_registry_url)
    with database.reading() as session:
        (instance,) = list_instances(session)
        assert instance.needs_change == is_given_up(instance) == needs_change
    database.close()


SIGNED = (
    f"""UPDATE versions SET signed_by = 'key', signed_version = 7,
        path = '/home/models/trees/{"ab" * 32}/a.gguf'""",
    f"""INSERT INTO versions (model_id, version, path, format, architecture, size_bytes, context_length,
        files, fingerprint, source, created_at)
        VALUES (1, 5, '/n', 'gguf', 'llama', 4, 2048, '[]', 'g', 'local', {AT})""",
)


def test_numbers_that_were_given_before_are_known(empty_registry_url: str) -> None:
    moved(empty_registry_url, "0001", is_upgrade=True, statements=ROWS)
    moved(empty_registry_url, "0009", is_upgrade=True, statements=SIGNED)
    database = open_database(empty_registry_url)
    with database.reading() as session:
        assert [(row.model, row.newest) for row in session.scalars(select(VersionNumber))] == [("tiny", 5)]
        (bundle,) = session.scalars(select(BundleNumber))
        assert (bundle.signer, bundle.model, bundle.newest) == ("key", "tiny", 7)
        assert bundle.digest == "ab" * 32, "the tree in which the files lie is named after them"
    database.close()


@pytest.mark.usefixtures("sqlite_only")
def test_settings_that_are_no_json_are_none(empty_registry_url: str) -> None:
    moved(empty_registry_url, "0001", is_upgrade=True, statements=ROWS)
    ready = "UPDATE instances SET ready_at = created_at"
    moved(
        empty_registry_url,
        "0007",
        is_upgrade=True,
        statements=("UPDATE deployments SET settings = ''", ready),
    )
    assert check_upgrade(empty_registry_url).num_rows > 0
    database = open_database(empty_registry_url)
    with database.session() as session:
        deployment = get_deployment(session, "chat")
        assert (deployment.settings, newest_rules(deployment).settings) == ({}, {})
        deployment.settings = {"max_num_seqs": "8"}
    database.close()
