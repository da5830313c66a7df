"""Every route with every role, with keys of every scope, and with nothing."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pytest

from trivet.errors import RequestError
from trivet_registry.account_tables import Role
from trivet_web.accounts.rights import (
    ALL,
    OPEN,
    RIGHTS_OF_ROLE,
    RIGHTS_OF_SCOPE,
    Right,
    Scope,
    check_scopes,
    right_of,
    rights_of_scopes,
)
from trivet_web.api.openapi import routes_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from conftest import Accounts
    from flask.testing import FlaskClient

MATRIX = {  # written out, so that a change of the tables is a change of a test
    Role.ADMIN: {*Right},
    Role.OPERATOR: {*Right} - {Right.ADMINISTER},
    Role.USER: {Right.NOTHING, Right.INFER, Right.ACCOUNT},
    Role.VIEWER: {Right.NOTHING, Right.READ, Right.METRICS, Right.ACCOUNT},
}
SCOPES = {
    Scope.INFER: {Right.NOTHING, Right.INFER},
    Scope.READ: {Right.NOTHING, Right.READ, Right.METRICS},
    Scope.OPERATE: {Right.NOTHING, Right.READ, Right.METRICS, Right.OPERATE},
    Scope.ADMIN: {*Right} - {Right.INFER},
}
# Of these the view itself answers 401 or 403, to who has the right: a wrong password, a key's owner, ...
OWN_REFUSALS = {"/platform/v1/password", "/login", "/setup", "/platform/v1/sessions", "/token"}
HARMFUL = {"/logout", "/platform/v1/session"}  # would end the session that asks


def routes(app: object) -> Iterator[tuple[str, str, Right]]:
    for rule, method, view in routes_of(app):  # type: ignore[arg-type]
        right = right_of(view)
        assert right is not None, f"{method} {rule.rule} declares nothing"
        if rule.rule not in HARMFUL | OWN_REFUSALS:
            yield method, re.sub(r"<(?:\w+:)?\w+>", "7", rule.rule), right


def asked(client: FlaskClient, method: str, path: str) -> int:
    """The status; a body that no view takes, so that nothing is changed."""
    return client.open(path, method=method, data=b"[", content_type="application/json").status_code


def test_tables_are_these() -> None:
    assert {role: {*rights} for role, rights in RIGHTS_OF_ROLE.items()} == MATRIX
    assert {scope: {*rights} for scope, rights in RIGHTS_OF_SCOPE.items()} == SCOPES
    assert {*OPEN} == {Right.NOTHING, Right.INFER, Right.METRICS}
    assert rights_of_scopes(["infer", "read", "of-the-future"]) == SCOPES[Scope.INFER] | SCOPES[Scope.READ]
    with pytest.raises(RequestError, match="'root' does not exist; there are infer, read, operate, admin"):
        check_scopes(["infer", "root"])


@pytest.mark.parametrize("role", Role)
def test_each_route_lets_in_the_roles_that_may(shared_accounts: Accounts, role: Role) -> None:
    client, num_tried = shared_accounts.log_in(role), 0
    for method, path, right in routes(shared_accounts.app):
        status = asked(client, method, path)
        assert (status not in (401, 403)) is (right in MATRIX[role]), f"{method} {path}: {status}"
        num_tried += 1
    assert num_tried > 60


@pytest.mark.parametrize("scope", Scope)
def test_each_route_lets_in_the_keys_that_may(shared_accounts: Accounts, scope: Scope) -> None:
    client = shared_accounts.with_key(scopes=[scope])
    for method, path, right in routes(shared_accounts.app):
        status = asked(client, method, path)
        assert (status not in (401, 403)) is (right in SCOPES[scope]), f"{method} {path}: {status}"


@pytest.mark.parametrize("header", [None, "Bearer sk-tv-wrong", "Bearer ts-wrong", "Bearer x", "Basic eDp5"])
def test_without_a_secret_only_what_needs_nothing_answers(
    shared_accounts: Accounts, header: str | None
) -> None:
    """Users exist, so nothing is open any more, though the site is bound to loopback."""
    client = shared_accounts.as_nobody()
    if header is not None:
        client.environ_base["HTTP_AUTHORIZATION"] = header
    for method, path, right in routes(shared_accounts.app):
        status = asked(client, method, path)
        assert (status == 401) is (right is not Right.NOTHING), f"{method} {path}: {status}"


def test_the_run_token_may_all(shared_accounts: Accounts) -> None:
    client = shared_accounts.with_token()
    for method, path, _ in routes(shared_accounts.app):
        assert asked(client, method, path) not in (401, 403), f"{method} {path}"


def test_what_needs_nothing_is_only_this(shared_accounts: Accounts) -> None:
    found = {
        f"{method} {rule.rule}"
        for rule, method, view in routes_of(shared_accounts.app)
        if right_of(view) is Right.NOTHING
    }
    assert found == {
        *("GET /", "GET /health", "GET /health/live", "GET /health/ready", "GET /version"),
        *("GET /openapi.json", "GET /v1/cluster/auth", "GET /login", "POST /login", "GET /setup"),
        *("POST /setup", "POST /platform/v1/sessions", "POST /token"),
        # Pages look themselves who opens them (console/views.py).
        *(
            "GET /console/<page>",
            "GET /console/<page>/<path:thing>",
            "GET /console/files/<version>/<path:name>",
        ),
    }


def test_a_key_has_no_more_rights_than_its_owner(accounts: Accounts) -> None:
    client = accounts.with_key("viewer", scopes=["admin", "infer", "operate"])
    assert client.get("/platform/v1/status").status_code == 200
    for path in ("/v1/models", "/platform/v1/users"):
        assert client.get(path).status_code == 403, path
    assert client.post("/platform/v1/deployments", json={}).status_code == 403


def test_a_key_for_some_models_sees_nothing_of_the_whole_site(shared_accounts: Accounts) -> None:
    """Also one whose scopes say otherwise, as an earlier release may have made it."""
    client = shared_accounts.with_key(scopes=list(Scope), models=["demo"])
    for method, path, right in routes(shared_accounts.app):
        status = asked(client, method, path)
        let_in = right in (Right.NOTHING, Right.INFER, Right.ACCOUNT)
        assert (status not in (401, 403)) is let_in, f"{method} {path}: {status}"


def test_all_is_all() -> None:
    assert frozenset(Right) == ALL


@pytest.mark.parametrize("path", ["/etc/passwd", "/nothing/here", "~root/x"])
def test_who_may_only_look_is_told_nothing_of_files_of_the_host(shared_accounts: Accounts, path: str) -> None:
    response = shared_accounts.log_in("viewer").post("/platform/v1/plan", json={"model": path})
    assert response.status_code == 403
    assert "GGUF" not in response.text
    asked = {"model": path}
    assert shared_accounts.with_token().post("/platform/v1/plan", json=asked).status_code in (400, 404)
