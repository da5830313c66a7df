"""What is known of keys while somebody acts, and while the registry does not answer."""

from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import TYPE_CHECKING

import pytest
from sqlalchemy.exc import OperationalError

from trivet.errors import Unavailable
from trivet_registry.audit_log import accounts_version
from trivet_registry.keys_store import KeySettings, create_key
from trivet_web.accounts import credentials as credentials_module
from trivet_web.accounts.credentials import KEEP_S, LOOK_S, TRUST_S, Credentials

if TYPE_CHECKING:
    from collections.abc import Iterator

    from conftest import Accounts, Site
    from sqlalchemy.orm import Session

    from trivet_registry.database import Database


class Clock:
    """CLOCK_MONOTONIC that a test moves."""

    now_s = 1000.0

    def __call__(self) -> float:
        return self.now_s


class Registry:
    """A registry that a test cuts off, or holds up."""

    def __init__(self, database: Database) -> None:
        self.database = database
        self.is_down = False
        self.held_up: threading.Event | None = None
        self.is_reading = threading.Event()

    @contextmanager
    def reading(self) -> Iterator[Session]:
        self.is_reading.set()
        if self.held_up is not None:
            assert self.held_up.wait(20)
        if self.is_down:
            raise OperationalError("SELECT", {}, Exception("cut off"))
        with self.database.reading() as session:
            yield session


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def registry(site: Site) -> Registry:
    return Registry(site.database)


@pytest.fixture
def credentials(registry: Registry, clock: Clock) -> Credentials:
    return Credentials(registry, lambda: "the token", clock)  # type: ignore[arg-type]


@pytest.fixture
def key(site: Site) -> str:
    with site.database.session() as session:
        return create_key(session, None, KeySettings("program"))[1]


def test_who_asks_while_another_thread_looks_after_an_act_is_let_through(
    credentials: Credentials, registry: Registry, key: str
) -> None:
    assert credentials.find(key) is not None
    registry.held_up = threading.Event()
    registry.is_reading.clear()
    credentials.forget_all()
    looking = threading.Thread(target=credentials.find, args=(key,))
    looking.start()
    try:
        assert registry.is_reading.wait(20)
        assert credentials.find(key) is not None
    finally:
        registry.held_up.set()
        looking.join(20)


def test_a_burst_after_a_pause_waits_for_the_one_that_looks(
    credentials: Credentials, registry: Registry, clock: Clock, key: str
) -> None:
    assert credentials.find(key) is not None
    clock.now_s += TRUST_S + 1
    registry.held_up = threading.Event()
    registry.is_reading.clear()
    with ThreadPoolExecutor(8) as pool:
        asked = [pool.submit(credentials.find, key)]
        assert registry.is_reading.wait(20)
        asked += [pool.submit(credentials.find, key) for _ in range(7)]
        time.sleep(0.1)  # they ask meanwhile
        registry.held_up.set()
        assert all(one.result() is not None for one in asked)


def test_a_burst_after_a_pause_is_told_when_the_registry_does_not_answer(
    credentials: Credentials,
    registry: Registry,
    clock: Clock,
    key: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(credentials_module, "PATIENCE_S", 0.1)
    assert credentials.find(key) is not None
    clock.now_s += TRUST_S + 1
    registry.held_up = threading.Event()
    registry.is_reading.clear()
    looking = threading.Thread(target=credentials.find, args=(key,))
    looking.start()
    try:
        assert registry.is_reading.wait(20)
        with pytest.raises(Unavailable, match="it does not answer"):
            credentials.find(key)
    finally:
        registry.held_up.set()
        looking.join(20)


def test_what_is_known_stands_for_a_while_after_an_act_too(
    credentials: Credentials, registry: Registry, clock: Clock, key: str
) -> None:
    assert credentials.find(key) is not None
    credentials.forget_all()
    registry.is_down = True
    assert credentials.find(key) is not None
    clock.now_s += TRUST_S - 1
    assert credentials.find(key) is not None
    clock.now_s += 2
    with pytest.raises(Unavailable, match="cut off"):
        credentials.find(key)
    registry.is_down = False
    assert credentials.find(key) is not None


def test_an_entry_that_grows_old_in_an_outage_is_trusted_as_long_as_the_others(
    credentials: Credentials, registry: Registry, clock: Clock, key: str
) -> None:
    assert credentials.find(key) is not None
    clock.now_s += KEEP_S - 1
    assert credentials.find(key) is not None
    clock.now_s += 2
    registry.is_down = True
    assert credentials.find(key) is not None


def test_an_act_is_seen_at_once_where_it_was_done(accounts: Accounts) -> None:
    made = accounts.with_token().post("/platform/v1/keys", json={"name": "k"}).get_json()
    client = accounts.app.test_client()
    bearer = {"Authorization": f"Bearer {made['key']}"}
    assert client.get("/v1/models", headers=bearer).status_code == 200
    assert accounts.with_token().delete(f"/platform/v1/keys/{made['id']}").status_code == 200
    assert client.get("/v1/models", headers=bearer).status_code == 401


def test_the_registry_is_looked_at_again_once_the_act_is_committed(
    accounts: Accounts, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before the commit, another thread would look in vain and think that it knows the newest."""
    seen: list[bool] = []
    forget_all = Credentials.forget_all

    def forget(self: Credentials) -> None:
        with accounts.site.database.reading() as session:
            seen.append(self._version < accounts_version(session))
        forget_all(self)

    monkeypatch.setattr(Credentials, "forget_all", forget)
    assert accounts.with_token().post("/platform/v1/keys", json={"name": "k"}).status_code == 201
    assert seen == [True]


def test_others_see_an_act_after_half_a_second(
    accounts: Accounts, credentials: Credentials, clock: Clock
) -> None:
    assert credentials.has_users()
    made = accounts.with_token().post("/platform/v1/keys", json={"name": "k"}).get_json()
    assert credentials.find(made["key"]) is not None
    assert accounts.with_token().delete(f"/platform/v1/keys/{made['id']}").status_code == 200
    assert credentials.find(made["key"]) is not None, "it is remembered"
    clock.now_s += LOOK_S
    assert credentials.find(made["key"]) is None
