"""Users, keys and the audit log over /platform/v1."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest
from sqlalchemy import text

from trivet_registry.tables import utc_now
from trivet_web.accounts.refused_acts import MINUTE_S, PER_MINUTE
from trivet_web.accounts.rights import Right, right_of
from trivet_web.api.openapi import routes_of

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from conftest import Accounts
    from flask.testing import FlaskClient

PASSWORD = "correct horse battery"
ALIASES = "/platform/v1/aliases"
KEYS, USERS = "/platform/v1/keys", "/platform/v1/users"
LATER = utc_now() + timedelta(days=30)


def test_an_admin_makes_changes_and_removes_users(accounts: Accounts) -> None:
    admin = accounts.log_in("admin")
    made = admin.post(USERS, json={"name": "Eve", "password": PASSWORD, "role": "operator"})
    assert made.status_code == 201
    assert made.get_json()["name"] == "eve"
    assert "password" not in made.text
    assert admin.post(USERS, json={"name": "eve", "password": PASSWORD}).status_code == 409
    assert admin.post(USERS, json={"name": "bob", "password": "short"}).status_code == 400
    assert admin.patch(f"{USERS}/eve", json={"role": "king"}).status_code == 400
    assert admin.patch(f"{USERS}/eve", json={"role": "viewer"}).get_json()["role"] == "viewer"
    assert admin.patch(f"{USERS}/admin", json={"role": "viewer"}).status_code == 409
    assert admin.delete(f"{USERS}/eve").status_code == 204
    assert admin.get(f"{USERS}/eve").status_code == 404
    assert [u["name"] for u in admin.get(USERS).get_json()["data"]] == ["admin", "operator", "user", "viewer"]


def test_a_key_is_shown_once_works_at_once_and_is_refused_once_it_is_revoked(accounts: Accounts) -> None:
    user = accounts.log_in("user")
    made = user.post(KEYS, json={"name": "ci", "requests_per_minute": 100}).get_json()
    key, key_id = made["key"], made["id"]
    assert key.startswith(made["prefix"])
    assert made["user"] == "user"
    for shown in (user.get(f"{KEYS}/{key_id}"), user.get(KEYS)):
        assert key not in shown.text
    other = accounts.open_again()  # another web process
    for header in ({"Authorization": f"Bearer {key}"}, {"X-Api-Key": key}):
        assert other.get("/v1/models", headers=header).status_code == 200
    revoked = user.delete(f"{KEYS}/{key_id}").get_json()
    assert revoked["revoked_at"] is not None
    here = accounts.as_nobody().get("/v1/models", headers={"Authorization": f"Bearer {key}"})
    assert here.status_code == 401


def test_a_revoked_key_is_refused_by_other_processes_within_a_second(
    accounts: Accounts, eventually: Callable[..., None]
) -> None:
    user, other = accounts.log_in("user"), accounts.open_again()
    made = user.post(KEYS, json={"name": "ci"}).get_json()
    header = {"Authorization": f"Bearer {made['key']}"}
    assert other.get("/v1/models", headers=header).status_code == 200
    user.delete(f"{KEYS}/{made['id']}")
    eventually(lambda: other.get("/v1/models", headers=header).status_code == 401, within_s=10)


def test_another_users_key_does_not_exist(accounts: Accounts) -> None:
    user, viewer, admin = (accounts.log_in(name) for name in ("user", "viewer", "admin"))
    key_id = user.post(KEYS, json={"name": "mine"}).get_json()["id"]
    for method in ("GET", "DELETE"):
        answers = [viewer.open(f"{KEYS}/{one}", method=method) for one in (key_id, key_id + 100)]
        assert [answer.status_code for answer in answers] == [404, 404]
    assert viewer.get(f"{KEYS}?all=1").get_json()["data"] == []
    assert [key["id"] for key in admin.get(f"{KEYS}?all=1").get_json()["data"]] == [key_id]
    assert admin.delete(f"{KEYS}/{key_id}").status_code == 200


@pytest.mark.parametrize(
    ("who", "body", "status", "param"),
    [
        ("user", {"scopes": ["infer", "operate"]}, 403, "scopes"),
        ("user", {"scopes": ["root"]}, 400, "scopes"),
        ("user", {"user": "admin"}, 403, "user"),
        ("user", {"user": None}, 403, "user"),
        ("user", {"priority": 10}, 400, "priority"),
        ("admin", {"user": "nobody"}, 404, "name"),
        ("admin", {"user": "viewer"}, 201, None),
        ("admin", {"user": None}, 201, None),
        ("operator", {"scopes": ["operate", "read", "infer"]}, 201, None),
        ("admin", {"scopes": ["infer", "read"], "models": ["demo"]}, 400, "scopes"),
        ("admin", {"scopes": ["admin"], "models": ["demo"], "user": None}, 400, "scopes"),
        ("admin", {"scopes": ["admin", "infer"], "models": ["demo"], "user": "user"}, 201, None),
    ],
)
def test_nobody_makes_a_key_that_may_more_than_themselves(
    accounts: Accounts, who: str, body: dict[str, Any], status: int, param: str | None
) -> None:
    response = accounts.log_in(who).post(KEYS, json={"name": "k", **body})
    assert response.status_code == status
    if param is not None:
        assert response.get_json()["error"]["param"] == param


@pytest.mark.parametrize(
    ("limits", "body", "param"),
    [
        ({"models": ["demo"]}, {}, "models"),
        ({"models": ["demo"]}, {"models": ["demo", "other"]}, "models"),
        ({"models": ["demo"]}, {"models": ["demo"]}, ""),
        ({"priority": 5}, {"priority": 4}, "priority"),
        ({"priority": 5}, {"priority": 6}, ""),
        ({"expires_at": LATER}, {}, "expires_at"),
        ({"expires_at": LATER}, {"expires_at": (LATER + timedelta(days=1)).isoformat()}, "expires_at"),
        ({"expires_at": LATER}, {"expires_at": LATER.isoformat()}, ""),
        ({"requests_per_minute": 6}, {"requests_per_minute": 6}, None),
        ({"max_concurrency": 1}, {"max_concurrency": 1}, None),
    ],
)
def test_a_key_makes_no_key_that_may_more_than_itself(
    accounts: Accounts, limits: dict[str, Any], body: dict[str, Any], param: str | None
) -> None:
    maker = accounts.with_key("user", scopes=["admin", "infer"], **limits)
    response = maker.post(KEYS, json={"name": "k", "scopes": ["infer"], **body})
    if param == "":
        assert response.status_code == 201
    else:
        assert (response.status_code, response.get_json()["error"]["param"]) == (403, param)


def test_a_time_that_is_none_is_told_with_one(accounts: Accounts) -> None:
    refused = accounts.with_token().post(KEYS, json={"name": "k", "expires_at": "2027-01-31"})
    error = refused.get_json()["error"]
    assert (refused.status_code, error["param"]) == (400, "expires_at")
    assert error["message"].endswith("write day, time and zone, as 2030-01-31T00:00:00Z")


@pytest.mark.parametrize(
    "expires_at", ["2100-01-01T00:00:00", "9999-12-31T23:59:59-12:00", "0001-01-01T00:00:00+12:00"]
)
def test_a_key_ends_at_a_time_that_there_is(accounts: Accounts, expires_at: str) -> None:
    client, body = accounts.with_token(), {"name": "k"}
    key_id = client.post(KEYS, json=body).get_json()["id"]
    for refused in (
        client.post(KEYS, json=body | {"expires_at": expires_at}),
        client.patch(f"{KEYS}/{key_id}", json={"expires_at": expires_at}),
    ):
        assert (refused.status_code, refused.get_json()["error"]["param"]) == (400, "expires_at")


def test_an_admin_changes_the_scopes_of_a_key(accounts: Accounts) -> None:
    admin = accounts.log_in("admin")
    made = admin.post(KEYS, json={"name": "k", "scopes": ["read", "infer"]}).get_json()
    place = f"{KEYS}/{made['id']}"
    assert admin.patch(place, json={"scopes": ["root"]}).status_code == 400
    assert admin.patch(place, json={"scopes": []}).status_code == 400
    limited = {"models": ["demo"]}
    refused = admin.patch(place, json=limited)
    assert (refused.status_code, refused.get_json()["error"]["param"]) == (400, "scopes"), "it could read"
    assert admin.patch(place, json={"scopes": ["infer"], **limited}).get_json()["scopes"] == ["infer"]


def test_an_expired_key_and_one_of_a_disabled_user_are_refused(
    accounts: Accounts, eventually: Callable[..., None]
) -> None:
    lasting = accounts.with_key("user")
    soon = accounts.with_key("admin", expires_at=utc_now() + timedelta(seconds=1))
    assert lasting.get("/v1/models").status_code == 200
    accounts.log_in("admin").patch(f"{USERS}/user", json={"is_disabled": True})
    assert lasting.get("/v1/models").status_code == 401
    eventually(lambda: soon.get("/v1/models").status_code == 401, within_s=10)


def test_only_an_admin_changes_limits(accounts: Accounts) -> None:
    user, admin = accounts.log_in("user"), accounts.log_in("admin")
    key_id = user.post(KEYS, json={"name": "k", "max_concurrency": 2}).get_json()["id"]
    assert user.patch(f"{KEYS}/{key_id}", json={"max_concurrency": 100}).status_code == 403
    changed = admin.patch(f"{KEYS}/{key_id}", json={"max_concurrency": None, "models": ["demo"]}).get_json()
    assert (changed["max_concurrency"], changed["models"], changed["name"]) == (None, ["demo"], "k")
    assert admin.patch(f"{KEYS}/{key_id}", json={"priority": 99}).status_code == 400


# ---- the audit log -------------------------------------------------------------------------------


def act(client: FlaskClient, method: str, path: str, body: object = None) -> int:
    return client.open(path, method=method, json=body).status_code


def test_every_act_leaves_one_entry_with_who_what_and_from_where(accounts: Accounts) -> None:
    """A route that changes something and is not here fails this test."""
    admin = accounts.log_in("admin")
    key_id = admin.post(KEYS, json={"name": "k"}).get_json()["id"]
    acts: dict[str, tuple[str, object, str]] = {
        "POST /platform/v1/users": (
            "/platform/v1/users",
            {"name": "eve", "password": PASSWORD},
            "user.create",
        ),
        "PATCH /platform/v1/users/<name>": (f"{USERS}/eve", {"role": "viewer"}, "user.change"),
        "DELETE /platform/v1/users/<name>": (f"{USERS}/eve", None, "user.remove"),
        "PATCH /platform/v1/keys/<int:key_id>": (f"{KEYS}/{key_id}", {"priority": 3}, "key.change"),
        "POST /platform/v1/deployments": (
            "/platform/v1/deployments",
            {"model": "smollm2", "name": "two", "backend": "null"},
            "deployment.launch",
        ),
        "PATCH /platform/v1/deployments/<name>": (
            "/platform/v1/deployments/two",
            {"replicas": 2},
            "deployment.update",
        ),
        "DELETE /platform/v1/deployments/<name>": ("/platform/v1/deployments/two", None, "deployment.stop"),
        "POST /api/create": ("/api/create", {"model": "pet", "from": "demo"}, "name.create"),
        "POST /api/copy": ("/api/copy", {"source": "demo", "destination": "pet2"}, "name.create"),
        "DELETE /api/delete": ("/api/delete", {"model": "pet"}, "name.remove"),
        "POST /v1/models": (
            "/v1/models?wait_ready=false",
            {"model_name": "smollm2", "model_uid": "three", "model_engine": "null"},
            "deployment.launch",
        ),
        "DELETE /v1/models/<model_uid>": ("/v1/models/three", None, "deployment.stop"),
        "PUT /platform/v1/aliases/<model>/<alias>": (
            f"{ALIASES}/smollm2/prod",
            {"version": "1"},
            "alias.set",
        ),
        "DELETE /platform/v1/aliases/<model>/<alias>": (f"{ALIASES}/smollm2/prod", None, "alias.remove"),
    }
    elsewhere = {  # with files, an engine or a source; conftest.py fails a test whose act leaves no entry
        *("POST /platform/v1/models", "DELETE /platform/v1/models/<name>"),
        "POST /platform/v1/instances/<instance_id>/reset-prefix-cache",
        "DELETE /platform/v1/requests/<request_id>",
        "POST /v1/model_registrations/<model_type>",
        *("POST /platform/v1/pulls", "DELETE /platform/v1/pulls/<pull_id>", "POST /platform/v1/bundles"),
        *("POST /platform/v1/versions/<reference>/verify", "POST /platform/v1/store/collect"),
        "POST /platform/v1/aliases/<model>/<alias>/roll-back",
        "DELETE /v1/model_registrations/<model_type>/<model_name>",
    }
    changing = {
        f"{method} {rule.rule}"
        for rule, method, view in routes_of(accounts.app)
        if method != "GET" and right_of(view) in (Right.OPERATE, Right.ADMINISTER)
    }
    assert {*acts} | elsewhere == changing
    for route, (path, body, action) in acts.items():
        before = accounts.audit()[0]["id"]
        assert act(admin, route.partition(" ")[0], path, body) < 300, route
        entries = [entry for entry in accounts.audit() if entry["id"] > before]
        assert [entry["action"] for entry in entries] == [action], route
        (entry,) = entries
        assert (entry["actor"], entry["address"], entry["outcome"]) == ("user admin", "127.0.0.1", "done")
        assert len(entry["request_id"]) == 24
    assert admin.get("/platform/v1/audit/verify").get_json()["is_whole"]


def test_entries_tell_what_changed_and_no_secret(accounts: Accounts) -> None:
    admin = accounts.log_in("admin")
    made = admin.post(KEYS, json={"name": "k", "max_concurrency": 2}).get_json()
    admin.patch(f"{KEYS}/{made['id']}", json={"max_concurrency": 5})
    admin.patch(f"{USERS}/viewer", json={"password": "a brand new password"})
    change = accounts.audit("key.change")[0]
    assert (change["before"]["max_concurrency"], change["after"]["max_concurrency"]) == (2, 5)
    assert accounts.audit("user.change")[0]["after"]["password"] == "changed"
    everything = str(accounts.audit())
    for secret in (made["key"], PASSWORD, "a brand new password", accounts.site.token, "argon2"):
        assert secret not in everything


def test_what_was_refused_is_recorded_too(accounts: Accounts) -> None:
    accounts.log_in("user").post("/platform/v1/deployments", json={"model": "demo"})
    accounts.as_nobody().post("/platform/v1/sessions", json={"name": "user", "password": "wrong"})
    accounts.as_nobody().post("/platform/v1/sessions", json={"name": PASSWORD, "password": "wrong"})
    unknown, wrong, launch = [entry for entry in accounts.audit() if entry["outcome"] == "refused"][:3]
    assert (launch["actor"], launch["action"]) == ("user user", "POST /platform/v1/deployments")
    assert (wrong["actor"], wrong["action"], wrong["target"]) == ("nobody", "session.open", "user user")
    assert unknown["target"] == "somebody unknown", "it may have been a password"


def test_what_a_route_refuses_itself_is_recorded_too(accounts: Accounts, tmp_path: Path) -> None:
    user = accounts.log_in("user")
    assert act(user, "POST", KEYS, {"name": "k", "scopes": ["admin"]}) == 403
    assert act(user, "POST", KEYS, {"name": "k", "user": "admin"}) == 403
    roots = str(tmp_path / "models")
    operator = accounts.log_in("operator", client=accounts.open_again(model_roots=roots))
    assert act(operator, "POST", "/platform/v1/models", {"path": str(tmp_path)}) == 403
    roots_entry, *key_entries = [entry for entry in accounts.audit() if entry["outcome"] == "refused"]
    assert (roots_entry["actor"], roots_entry["action"]) == ("user operator", "POST /platform/v1/models")
    assert "model_roots" in roots_entry["after"]["reason"]
    assert [(each["actor"], each["action"]) for each in key_entries] == [("user user", f"POST {KEYS}")] * 2


def test_many_refused_acts_are_few_entries_that_tell_how_many_there_were(
    accounts: Accounts, monkeypatch: pytest.MonkeyPatch
) -> None:
    refused_acts = accounts.app.extensions["trivet.accounts"].refused_acts
    now_s = [1000.0]
    monkeypatch.setattr(refused_acts, "_clock", lambda: now_s[0])
    key, other = accounts.with_key("user"), accounts.with_key("viewer")
    for _ in range(50):
        assert key.post(USERS, json={}).status_code == 403
    assert other.post(USERS, json={}).status_code == 403
    now_s[0] += MINUTE_S
    assert key.post(USERS, json={}).status_code == 403
    entries = accounts.audit("POST /platform/v1/users")
    assert len(entries) == PER_MINUTE + 2
    assert [entry["after"].get("left_out") for entry in entries[:2]] == [50 - PER_MINUTE, None]


def test_verify_names_the_first_edited_entry(accounts: Accounts) -> None:
    admin = accounts.log_in("admin")
    for number in range(3):
        admin.post(KEYS, json={"name": f"k{number}"})
    whole = admin.get("/platform/v1/audit/verify").get_json()
    assert (whole["is_whole"], whole["entries"]) == (True, 4)
    with accounts.site.database.session() as session:
        session.execute(text("UPDATE audit_log SET actor = 'user mallory' WHERE id IN (2, 4)"))
    found = admin.get("/platform/v1/audit/verify", query_string={"anchor": whole["anchor"]}).get_json()
    assert not found["is_whole"]
    assert "entry 2 is not what was written" in found["fault"]


def test_an_act_that_cannot_be_recorded_is_not_done(accounts: Accounts) -> None:
    admin = accounts.log_in("admin")
    with accounts.site.database.session() as session:
        session.execute(text("DROP TABLE audit_log"))
    is_postgres = accounts.site.database.engine.dialect.name == "postgresql"
    status = 500 if is_postgres else 503  # SQLite says it as it says that a disk is full
    assert admin.delete(f"{USERS}/viewer").status_code == status
    assert admin.get(f"{USERS}/viewer").status_code == 200
