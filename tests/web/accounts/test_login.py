"""Login, sessions and their cookies, CSRF, throttling, the setup link."""

from __future__ import annotations

import re
import statistics
import threading
import time
from typing import TYPE_CHECKING

import pytest

from trivet.access import setup_code
from trivet_registry.audit_log import list_entries
from trivet_registry.login_throttle import PER_PAIR
from trivet_registry.users_store import get_user, list_users, set_password_hash
from trivet_web.accounts import login
from trivet_web.accounts.passwords import hash_password
from trivet_web.api.management import users

if TYPE_CHECKING:
    from collections.abc import Callable

    from conftest import Accounts, Site
    from flask.testing import FlaskClient

    from trivet_web.models.served_models import ServedModel

PASSWORD = "correct horse battery"
LOGIN = "/platform/v1/sessions"


def cookie_of(client: FlaskClient) -> str | None:
    found = client.get_cookie("trivet_session")
    return None if found is None else found.value


def test_login_sets_a_cookie_that_scripts_and_other_sites_do_not_get(shared_accounts: Accounts) -> None:
    body = {"name": "User", "password": PASSWORD}
    plain = shared_accounts.as_nobody().post(LOGIN, json=body).headers["Set-Cookie"]
    assert plain.startswith("trivet_session=ts-")
    assert {"HttpOnly", "SameSite=Lax", "Path=/"} <= set(plain.split("; "))
    assert "Secure" not in plain
    secure = shared_accounts.as_nobody().post(LOGIN, json=body, base_url="https://localhost")
    assert secure.headers["Set-Cookie"].startswith("__Host-trivet=ts-")
    assert {"Secure", "HttpOnly", "SameSite=Lax", "Path=/"} <= set(secure.headers["Set-Cookie"].split("; "))
    assert "Domain" not in secure.headers["Set-Cookie"]
    assert secure.headers["Cache-Control"] == "no-store"


def test_each_login_has_a_new_id_and_ends_the_one_before(shared_accounts: Accounts) -> None:
    client = shared_accounts.as_nobody()
    client.set_cookie("trivet_session", "ts-planted")
    first = cookie_of(shared_accounts.log_in("user", client=client))
    second = cookie_of(shared_accounts.log_in("user", client=client))
    assert len({"ts-planted", first, second}) == 3
    client.set_cookie("trivet_session", str(first))
    assert client.get("/platform/v1/session").status_code == 401


@pytest.mark.parametrize(
    ("name", "password"),
    [("user", "wrong"), ("nobody", PASSWORD), ("", ""), ("user", "x" * 5000), ("user", PASSWORD + " ")],
)
def test_whatever_is_wrong_the_answer_is_the_same(accounts: Accounts, name: str, password: str) -> None:
    response = accounts.as_nobody().post(LOGIN, json={"name": name, "password": password})
    assert response.status_code == 401
    assert response.get_json()["error"]["message"] == "name or password is wrong"
    assert "Set-Cookie" not in response.headers


def test_a_name_that_nobody_has_costs_what_one_with_a_wrong_password_costs(
    accounts: Accounts, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In processor time of the thread that answers, which a busy machine does not change."""
    monkeypatch.setattr(login, "begin_attempt", lambda *_: 0.0)
    client, costs = accounts.as_nobody(), {"user": [], "nobody": []}
    for _ in range(15):
        for name in costs:
            begun_s = time.thread_time()
            response = client.post(LOGIN, json={"name": name, "password": "wrong password"})
            costs[name].append(time.thread_time() - begun_s)
            assert response.status_code == 401
    known, unknown = (statistics.median(costs[name]) for name in ("user", "nobody"))
    assert 1 / 2 < known / unknown < 2, "without the same hash it is ten times as cheap"


def test_a_password_that_is_reset_while_it_is_looked_at_opens_no_session(
    accounts: Accounts, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks = login.is_guess_right

    def reset_meanwhile(*args: object) -> bool:
        is_right = looks(*args)
        with accounts.site.database.session() as session:
            set_password_hash(session, get_user(session, "user"), hash_password("another good password"))
        return is_right

    monkeypatch.setattr(login, "is_guess_right", reset_meanwhile)
    response = accounts.as_nobody().post(LOGIN, json={"name": "user", "password": PASSWORD})
    assert response.status_code == 401
    monkeypatch.undo()
    assert accounts.log_in("user", "another good password")


def test_ones_own_change_does_not_undo_a_reset_that_came_meanwhile(
    accounts: Accounts, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = accounts.log_in("user")

    def reset_meanwhile(password: str) -> str:
        with accounts.site.database.session() as session:
            set_password_hash(session, get_user(session, "user"), hash_password("another good password"))
        return hash_password(password)

    monkeypatch.setattr(users, "hash_password", reset_meanwhile)
    body = {"current": PASSWORD, "password": "a third good password"}
    assert client.post("/platform/v1/password", json=body).status_code == 409
    assert accounts.log_in("user", "another good password")


def test_a_new_password_that_is_too_short_is_no_guess_and_a_wrong_guess_is_recorded(
    accounts: Accounts,
) -> None:
    client = accounts.log_in("user")
    for _ in range(PER_PAIR + 1):
        body = {"current": PASSWORD, "password": "short"}
        assert client.post("/platform/v1/password", json=body).status_code == 400
    body = {"current": "wrong", "password": "a third good password"}
    assert client.post("/platform/v1/password", json=body).status_code == 401
    assert accounts.audit("user.change")[0]["outcome"] == "refused"
    assert accounts.log_in("user")


def test_the_sixth_attempt_waits_whichever_process_it_reaches(accounts: Accounts) -> None:
    clients = [accounts.as_nobody(), accounts.open_again()]
    wrong = {"name": "user", "password": "wrong"}
    statuses = [clients[n % 2].post(LOGIN, json=wrong).status_code for n in range(PER_PAIR)]
    assert statuses == [401] * PER_PAIR
    for client in clients:
        response = client.post(LOGIN, json={"name": "USER", "password": PASSWORD})
        assert response.status_code == 429
        assert 0 < int(response.headers["Retry-After"]) <= 30
    assert accounts.log_in("viewer"), "others log in"


def test_a_blocked_login_waits_for_no_writer(accounts: Accounts) -> None:
    wrong = {"name": "user", "password": "wrong"}
    statuses = [accounts.as_nobody().post(LOGIN, json=wrong).status_code for _ in range(PER_PAIR + 1)]
    assert statuses[-1] == 429
    with accounts.site.database.session():
        assert accounts.as_nobody().post(LOGIN, json=wrong).status_code == 429


def test_ones_own_password_is_guessed_no_oftener_than_at_the_login(accounts: Accounts) -> None:
    client = accounts.log_in("user")
    body = {"current": "guess", "password": "a new long password"}
    statuses = [client.post("/platform/v1/password", json=body).status_code for _ in range(PER_PAIR + 1)]
    assert statuses == [401] * PER_PAIR + [429]
    good = client.post("/platform/v1/password", json=body | {"current": PASSWORD})
    assert good.status_code == 429


def test_guesses_sent_at_the_same_time_count_as_well(accounts: Accounts) -> None:
    statuses: list[int] = []

    def guess() -> None:
        body = {"name": "user", "password": "wrong"}
        statuses.append(accounts.as_nobody().post(LOGIN, json=body).status_code)

    threads = [threading.Thread(target=guess) for _ in range(15)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert statuses.count(401) <= PER_PAIR
    assert set(statuses) == {401, 429}


def test_logout_ends_the_session_also_for_who_kept_the_cookie(accounts: Accounts) -> None:
    client = accounts.log_in("user")
    kept = str(cookie_of(client))
    assert client.get("/platform/v1/session").get_json()["user"] == "user"
    assert client.delete("/platform/v1/session").status_code == 204
    assert cookie_of(client) is None
    client.set_cookie("trivet_session", kept)
    assert client.get("/platform/v1/session").status_code == 401


@pytest.mark.parametrize(
    "change", [{"password": "another good password"}, {"role": "viewer"}, {"is_disabled": True}]
)
def test_a_change_of_the_user_ends_its_sessions(accounts: Accounts, change: dict[str, object]) -> None:
    client, admin = accounts.log_in("user"), accounts.log_in("admin")
    assert admin.patch("/platform/v1/users/user", json=change).status_code == 200
    assert client.get("/platform/v1/session").status_code == 401
    if "is_disabled" in change:
        body = {"name": "user", "password": PASSWORD}
        assert client.post(LOGIN, json=body).status_code == 401


def test_ones_own_new_password_ends_the_other_sessions(accounts: Accounts) -> None:
    here, there = accounts.log_in("user"), accounts.log_in("user")
    wrong = here.post("/platform/v1/password", json={"current": "x", "password": "a new long password"})
    assert wrong.status_code == 401
    for easy, why in (
        ("short", "at least 12"),
        ("abab" * 5, "has 2 different characters"),
        (" " * 12, "has 1"),
    ):
        refused = here.post("/platform/v1/password", json={"current": PASSWORD, "password": easy})
        assert refused.status_code == 400
        assert why in refused.get_json()["error"]["message"]
    good = here.post("/platform/v1/password", json={"current": PASSWORD, "password": "a new long password"})
    assert good.status_code == 204
    assert here.get("/platform/v1/session").status_code == 200
    assert there.get("/platform/v1/session").status_code == 401
    assert accounts.log_in("user", "a new long password")


def test_one_sees_and_ends_ones_own_sessions_and_an_admin_all(accounts: Accounts) -> None:
    user, viewer, admin = (accounts.log_in(name) for name in ("user", "viewer", "admin"))
    (mine,) = user.get(LOGIN).get_json()["data"]
    assert (mine["user"], mine["is_current"], mine["address"]) == ("user", True, "127.0.0.1")
    assert len(admin.get(f"{LOGIN}?all=1").get_json()["data"]) == 3
    assert len(user.get(f"{LOGIN}?all=1").get_json()["data"]) == 1
    assert viewer.delete(f"{LOGIN}/{mine['id']}").status_code == 404
    assert admin.delete(f"{LOGIN}/{mine['id']}").status_code == 204
    assert user.get(LOGIN).status_code == 401
    assert str(cookie_of(user)) not in str(mine)


# ---- CSRF ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("token", [None, "", "wrong", "0" * 64])
def test_a_cookie_without_its_csrf_token_changes_nothing(accounts: Accounts, token: str | None) -> None:
    client = accounts.log_in("admin")
    del client.environ_base["HTTP_X_CSRF_TOKEN"]
    headers = {} if token is None else {"X-CSRF-Token": token}
    body = {"name": "eve", "password": PASSWORD, "role": "admin"}
    refused = client.post("/platform/v1/users", json=body, headers=headers)
    assert refused.status_code == 403
    assert refused.get_json()["error"]["param"] == "X-CSRF-Token"
    assert client.get("/platform/v1/users", headers=headers).status_code == 200, "reading needs none"
    with accounts.site.database.reading() as session:
        assert "eve" not in [user.name for user in list_users(session)]


def test_the_csrf_token_of_another_session_is_refused(accounts: Accounts) -> None:
    client, other = accounts.log_in("admin"), accounts.log_in("user")
    client.environ_base["HTTP_X_CSRF_TOKEN"] = other.environ_base["HTTP_X_CSRF_TOKEN"]
    assert client.delete("/platform/v1/users/viewer").status_code == 403


def test_a_cookie_alone_does_not_reach_inference(accounts: Accounts) -> None:
    client = accounts.log_in("user")
    assert client.get("/v1/models").status_code == 200
    del client.environ_base["HTTP_X_CSRF_TOKEN"]
    for method, path in (("GET", "/v1/models"), ("POST", "/v1/chat/completions"), ("GET", "/api/tags")):
        assert client.open(path, method=method, json={}).status_code == 401, path


def test_pages_of_other_origins_are_refused_with_a_good_cookie(accounts: Accounts) -> None:
    client = accounts.log_in("admin")
    for headers in ({"Origin": "https://evil.example"}, {"Sec-Fetch-Site": "cross-site"}):
        assert client.get("/platform/v1/users", headers=headers).status_code == 403
        assert client.post("/login", data={}, headers=headers).status_code == 403


# ---- pages ---------------------------------------------------------------------------------------


def test_login_and_logout_work_without_javascript(accounts: Accounts) -> None:
    client = accounts.as_nobody()
    html = {"Accept": "text/html"}
    assert client.get("/", headers=html).headers["Location"] == "/login"
    page = client.get("/login")
    assert 'action="/login"' in page.text
    wrong = client.post("/login", data={"name": '"><b>', "password": "wrong"})
    assert wrong.status_code == 401
    assert "or password is wrong" in wrong.text
    assert "<b>" not in wrong.text
    done = client.post("/login", data={"name": "user", "password": PASSWORD})
    assert (done.status_code, done.headers["Location"]) == (303, "/")
    console = client.get("/console/playground", headers=html)
    token = re.search(r'name="csrf_token" value="(\w+)"', console.text)
    assert token is not None
    assert client.post("/logout").status_code == 403
    assert client.post("/logout", data={"csrf_token": token[1]}).headers["Location"] == "/login"
    assert client.get("/", headers=html).status_code == 303


def test_the_setup_link_makes_one_admin_once(
    site: Site, served_model: ServedModel, open_client: Callable[..., FlaskClient]
) -> None:
    client = open_client(site, served_model)
    html = {"Accept": "text/html"}
    assert client.get("/v1/models").status_code == 200, "open, as nobody has set it up"
    assert client.get("/", headers=html).headers["Location"] == "/setup"
    code = setup_code(site.token)
    assert site.token not in code
    assert "<form" not in client.get("/setup?token=wrong").text
    assert f'value="{code}"' in client.get(f"/setup?token={code}").text
    form = {"token": code, "name": "Root", "password": PASSWORD, "again": PASSWORD}
    for changed, status in (
        *(({"token": "wrong"}, 403), ({"again": "other"}, 400), ({"name": "no good"}, 400)),
        *(({"password": "short", "again": "short"}, 400), ({"token": site.token}, 403)),
    ):
        assert client.post("/setup", data=form | changed).status_code == status, changed
    assert client.get("/v1/models").status_code == 200
    with site.database.reading() as session:
        tried = [(e.actor, e.action, e.target, e.outcome) for e in list_entries(session)]
    assert tried == [("nobody", "site.set_up", "/setup", "refused")] * 2, "with the wrong codes"
    done = client.post("/setup", data=form)
    assert (done.status_code, done.headers["Location"]) == (303, "/")
    assert client.get("/platform/v1/session").get_json()["role"] == "admin"
    again = client.post("/setup", data=form | {"name": "second"})
    assert again.status_code == 409
    assert client.get(f"/setup?token={code}").headers["Location"] == "/login"
    client.delete_cookie("trivet_session")
    assert client.get("/v1/models").status_code == 401, "a user exists"


def test_two_who_set_up_at_once_make_one_admin(
    site: Site, served_model: ServedModel, open_client: Callable[..., FlaskClient]
) -> None:
    app, statuses = open_client(site, served_model).application, []
    form = {"token": setup_code(site.token), "password": PASSWORD, "again": PASSWORD}

    def set_up(name: str) -> None:
        statuses.append(app.test_client().post("/setup", data=form | {"name": name}).status_code)

    threads = [threading.Thread(target=set_up, args=(f"root{n}",)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert sorted(statuses) == [303, 409, 409, 409]


def test_clients_of_xinference_log_in_for_a_bearer(accounts: Accounts) -> None:
    client = accounts.as_nobody()
    assert client.get("/v1/cluster/auth").get_json() == {"auth": True}
    wrong = client.post("/token", json={"username": "user", "password": "wrong"})
    assert (wrong.status_code, wrong.get_json()["detail"]) == (401, "name or password is wrong")
    given = client.post("/token", json={"username": "user", "password": PASSWORD}).get_json()
    assert given["token_type"] == "bearer"
    bearer = {"Authorization": f"Bearer {given['access_token']}"}
    assert client.get("/v1/models", headers=bearer).status_code == 200
    assert client.delete("/platform/v1/session", headers=bearer).status_code == 204
    assert client.get("/v1/models", headers=bearer).status_code == 401
