"""A site with a user of each role, and clients that are one of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from trivet_registry.account_tables import Role
from trivet_registry.keys_store import KeySettings, create_key
from trivet_registry.users_store import create_user, find_user
from trivet_web.accounts.passwords import hash_password

if TYPE_CHECKING:
    from conftest import Site
    from flask import Flask
    from flask.testing import FlaskClient
    from werkzeug.test import TestResponse

    from trivet_web.models.served_models import ServedModel

PASSWORD = "correct horse battery"


@dataclass
class Accounts:
    """The application of a site that has users `admin`, `operator`, `user` and `viewer`."""

    site: Site
    app: Flask
    open_again: Callable[..., FlaskClient]
    csrf: dict[int, str] = field(default_factory=dict)

    def as_nobody(self) -> FlaskClient:
        return self.app.test_client()

    def log_in(self, name: str, password: str = PASSWORD, client: FlaskClient | None = None) -> FlaskClient:
        """A client with the session's cookie and its CSRF token in the header of each request."""
        client = client or self.app.test_client()
        response = client.post("/platform/v1/sessions", json={"name": name, "password": password})
        assert response.status_code == 201, response.get_data(as_text=True)
        client.environ_base["HTTP_X_CSRF_TOKEN"] = response.get_json()["csrf_token"]
        return client

    def with_key(self, user: str | None = None, **settings: Any) -> FlaskClient:
        """A client that sends a new key."""
        client = self.app.test_client(use_cookies=False)
        client.environ_base["HTTP_AUTHORIZATION"] = f"Bearer {self.key(user, **settings)}"
        return client

    def key(self, user: str | None = None, **settings: Any) -> str:
        with self.site.database.session() as session:
            owner = None if user is None else find_user(session, user)
            return create_key(session, owner, KeySettings(**{"name": "test", **settings}))[1]

    def with_token(self) -> FlaskClient:
        client = self.app.test_client(use_cookies=False)
        client.environ_base["HTTP_AUTHORIZATION"] = f"Bearer {self.site.token}"
        return client

    def audit(self, action: str | None = None) -> list[Mapping[str, Any]]:
        """The newest first."""
        path = "/platform/v1/audit" + (f"?action={action}" if action else "")
        entries: list[Mapping[str, Any]] = self.with_token().get(path).get_json()["data"]
        return entries


def _made(site: Site, served_model: ServedModel, open_client: Callable[..., FlaskClient]) -> Accounts:
    password_hash = hash_password(PASSWORD)
    with site.database.session() as session:
        for role in Role:
            create_user(session, role, role, password_hash)

    def open_again(**settings: object) -> FlaskClient:
        """Another web process of the same site."""
        site.settings = msgspec.structs.replace(site.settings, **settings)
        return open_client(site, served_model)

    return Accounts(site, open_client(site, served_model).application, open_again)


@pytest.fixture
def accounts(site: Site, served_model: ServedModel, open_client: Callable[..., FlaskClient]) -> Accounts:
    return _made(site, served_model, open_client)


@pytest.fixture(scope="module")
def shared_accounts(
    new_site: Callable[[], AbstractContextManager[Site]],
    served_model: ServedModel,
    open_client: Callable[..., FlaskClient],
) -> Iterator[Accounts]:
    """With one ready engine; for tests that change nothing."""
    with new_site() as site:
        site.start_engine()
        yield _made(site, served_model, open_client)


def error_of(response: TestResponse) -> dict[str, Any]:
    found: dict[str, Any] = response.get_json()["error"]
    return found
