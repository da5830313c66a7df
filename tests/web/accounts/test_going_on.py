"""A log that is followed ends with the login or key that follows it."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

import pytest

from trivet_registry.instance_state import InstanceState
from trivet_registry.keys_store import list_keys
from trivet_registry.tables import Instance
from trivet_web.api.management.logs import SENT_OUT

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from conftest import Accounts
    from flask.testing import FlaskClient

    Ends = Callable[[Accounts, FlaskClient], object]


def log_out(accounts: Accounts, client: FlaskClient) -> None:
    assert client.delete("/platform/v1/session").status_code == 204


def demote(accounts: Accounts, client: FlaskClient) -> None:
    changed = accounts.log_in("admin").patch("/platform/v1/users/operator", json={"role": "user"})
    assert changed.status_code == 200


def revoke(accounts: Accounts, client: FlaskClient) -> None:
    with accounts.site.database.reading() as session:
        (key,) = list_keys(session)
    assert accounts.with_token().delete(f"/platform/v1/keys/{key.id}").status_code == 200


@pytest.mark.parametrize(
    ("has_key", "end"), [(False, log_out), (False, demote), (True, demote), (True, revoke)]
)
@pytest.mark.parametrize("is_sites", [True, False])
def test_a_followed_log_ends_with_the_right_to_it(
    accounts: Accounts,
    tmp_path: Path,
    eventually: Callable[..., None],
    has_key: bool,
    end: Ends,
    is_sites: bool,
) -> None:
    file = accounts.site.settings.paths.logs / "web.log" if is_sites else tmp_path / "engine.log"
    file.parent.mkdir(exist_ok=True)
    file.write_bytes(b"before\n")
    instance = accounts.site.add_instance(InstanceState.PLACING, InstanceState.STARTING)
    with accounts.site.database.session() as session:
        session.get_one(Instance, instance).log_file = str(file)
    place = "site-logs/web" if is_sites else f"logs/{instance}"
    client = accounts.with_key("operator", scopes=["operate"]) if has_key else accounts.log_in("operator")
    answer = client.get(f"/platform/v1/{place}?follow=1", buffered=False)
    pieces: list[bytes] = []
    reading = threading.Thread(target=lambda: pieces.extend(answer.iter_encoded()), daemon=True)
    reading.start()
    eventually(lambda: pieces == [b"before\n"], within_s=30)
    with file.open("ab") as log:
        log.write(b"still\n")
    eventually(lambda: pieces[-1] == b"still\n", within_s=30)
    end(accounts, client)
    eventually(lambda: not reading.is_alive(), within_s=30)
    assert pieces[-1] == SENT_OUT
    answer.close()
