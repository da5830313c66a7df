"""Who may ask what: token, Host, Origin, headers."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import pytest
from flask import Flask

from trivet.config import Settings
from trivet_registry.database import open_database
from trivet_web import error_objects, guard
from trivet_web.accounts.rights import Right, requires
from trivet_web.accounts.site_accounts import SiteAccounts

if TYPE_CHECKING:
    from conftest import Site
    from flask.testing import FlaskClient

TOKEN = "secret-token"
BEARER = {"Authorization": f"Bearer {TOKEN}"}
ROUTES = {
    "/": Right.NOTHING,
    "/health": Right.NOTHING,
    "/metrics": Right.METRICS,
    "/v1/models": Right.INFER,
    "/platform/v1/status": Right.READ,
}


@pytest.fixture
def open_with(tmp_path: Path) -> Iterator[Callable[..., FlaskClient]]:
    """A client of an application that has nothing but the guard and a few routes."""

    database = open_database(f"sqlite:///{tmp_path / 'registry.db'}")

    def make(**settings: object) -> FlaskClient:
        app = Flask(__name__, static_folder=None)
        guard.register(app, SiteAccounts.of(Settings(**settings), database, lambda: TOKEN))
        error_objects.register(app)
        for path, right in ROUTES.items():
            view = requires(right)(lambda: {"ok": True})
            app.add_url_rule(path, path, view, methods=["GET", "POST"])
        guard.seal(app)
        return app.test_client()

    yield make
    database.close()


@pytest.mark.parametrize(
    ("settings", "path", "needs_token"),
    [
        ({}, "/v1/models", False),
        ({}, "/metrics", False),
        ({}, "/platform/v1/status", True),
        ({"auth": "required"}, "/v1/models", True),
        ({"auth": "required"}, "/metrics", True),
        ({"auth": "required"}, "/health", False),
        ({"auth": "required"}, "/", False),
        ({"auth": "off"}, "/platform/v1/status", False),
        ({"host": "0.0.0.0", "insecure": True}, "/v1/models", True),
        ({"host": "0.0.0.0", "insecure": True}, "/metrics", True),
        ({"host": "0.0.0.0", "insecure": True}, "/platform/v1/status", True),
        ({"host": "0.0.0.0", "insecure": True}, "/health", False),
    ],
)
def test_token_is_asked_for_where_it_must_be(
    open_with: Callable[..., FlaskClient], settings: dict[str, object], path: str, needs_token: bool
) -> None:
    client = open_with(**settings)
    assert client.get(path).status_code == (401 if needs_token else 200)
    assert client.get(path, headers=BEARER).status_code == 200


@pytest.mark.parametrize("header", ["", "Bearer", "Bearer ", "Bearer wrong", "Basic c2VjcmV0LXRva2Vu", TOKEN])
def test_wrong_token_is_401_with_an_error_object(open_with: Callable[..., FlaskClient], header: str) -> None:
    response = open_with().get("/platform/v1/status", headers={"Authorization": header})
    assert response.status_code == 401
    assert response.get_json()["error"]["code"] == "invalid_api_key"
    assert response.headers["WWW-Authenticate"] == "Bearer"
    assert TOKEN not in response.get_data(as_text=True)


@pytest.mark.parametrize("host", ["localhost", "localhost:8000", "127.0.0.1:8000", "[::1]:8000", "127.5.5.5"])
def test_loopback_hosts_are_served(open_with: Callable[..., FlaskClient], host: str) -> None:
    assert open_with().get("/health", headers={"Host": host}).status_code == 200


@pytest.mark.parametrize("host", ["evil.example", "evil.example:8000", "127.0.0.1.evil.example", "10.0.0.1"])
def test_other_hosts_are_refused_on_loopback(open_with: Callable[..., FlaskClient], host: str) -> None:
    """A page that points its own name at 127.0.0.1 would otherwise be of our origin."""
    response = open_with().get("/v1/models", headers={"Host": host})
    assert response.status_code == 400
    assert response.get_json()["error"]["param"] == "Host"
    beyond = open_with(host="0.0.0.0", insecure=True)
    assert beyond.get("/health", headers={"Host": host}).status_code == 200


def test_only_named_hosts_are_answered_where_there_is_a_list(open_with: Callable[..., FlaskClient]) -> None:
    client = open_with(host="0.0.0.0", insecure=True, allowed_hosts="llm.example, LLM2.example")
    for host, status in (
        *(("llm.example:8000", 200), ("llm2.example", 200), ("localhost", 200)),
        *(("evil.example", 400), ("llm.example.evil.example", 400), ("", 400)),
    ):
        assert client.get("/health", headers={"Host": host}).status_code == status, host


def test_forwarded_headers_are_believed_of_known_proxies_only(
    open_with: Callable[..., FlaskClient],
) -> None:
    forwarded = {
        "X-Forwarded-Proto": "https",
        "X-Forwarded-Host": "evil.example",
        "X-Forwarded-For": "1.2.3.4",
    }
    assert "Strict-Transport-Security" not in open_with().get("/health", headers=forwarded).headers
    behind = open_with(num_proxies=1, auth="required")
    assert "Strict-Transport-Security" in behind.get("/health", headers=forwarded).headers


def test_a_route_that_does_not_say_who_may_use_it_stops_the_start(
    open_with: Callable[..., FlaskClient],
) -> None:
    app = open_with().application
    app._got_first_request = False
    app.add_url_rule("/forgotten", "module.forgotten", lambda: "secret")
    with pytest.raises(RuntimeError, match=r"/forgotten \(module.forgotten\).*put @requires"):
        guard.seal(app)
    assert app.test_client().get("/forgotten", headers=BEARER).status_code == 403


def test_proxy_may_keep_its_own_host_where_every_request_needs_the_token(
    open_with: Callable[..., FlaskClient],
) -> None:
    host = {"Host": "llm.example", "Origin": "https://llm.example"}
    client = open_with(auth="required")
    assert client.get("/v1/models", headers=host).status_code == 401
    assert client.get("/v1/models", headers={**host, **BEARER}).status_code == 200


@pytest.mark.parametrize(
    ("headers", "allowed"),
    [
        ({}, True),
        ({"Origin": "http://localhost", "Sec-Fetch-Site": "same-origin"}, True),
        ({"Sec-Fetch-Site": "same-origin"}, True),
        ({"Sec-Fetch-Site": "none", "Sec-Fetch-Mode": "navigate"}, True),
        ({"Origin": "https://evil.example"}, False),
        ({"Origin": "http://localhost:3000"}, False),
        ({"Origin": "null"}, False),
        ({"Origin": "http://["}, False),
        ({"Origin": "localhost"}, False),
        ({"Origin": "http://localhost/"}, False),
        ({"Sec-Fetch-Site": "cross-site"}, False),
        ({"Sec-Fetch-Site": "same-site", "Sec-Fetch-Mode": "no-cors"}, False),
    ],
)
def test_pages_of_other_origins_are_refused(
    open_with: Callable[..., FlaskClient], headers: dict[str, str], allowed: bool
) -> None:
    for method in ("GET", "POST"):
        response = open_with().open("/v1/models", method=method, headers=headers)
        assert response.status_code == (200 if allowed else 403), method
        assert "Access-Control-Allow-Origin" not in response.headers


PAGE = "https://app.example.com"


def test_pages_of_listed_origins_may_use_v1_with_a_key(open_with: Callable[..., FlaskClient]) -> None:
    client = open_with(cors_origins=f"http://other.example:8080, {PAGE}", auth="required")
    asked = {"Access-Control-Request-Method": "POST", "Access-Control-Request-Headers": "authorization"}
    preflight = client.options("/v1/models", headers={"Origin": PAGE, **asked})
    assert (preflight.status_code, preflight.headers["Access-Control-Allow-Headers"]) == (
        204,
        "authorization",
    )
    for headers, status in ((BEARER, 200), ({}, 401)):  # also what is wrong can be read
        response = client.post(
            "/v1/models", headers={"Origin": PAGE, "Sec-Fetch-Site": "cross-site", **headers}
        )
        assert (response.status_code, response.headers["Access-Control-Allow-Origin"]) == (status, PAGE)
        assert "Access-Control-Allow-Credentials" not in response.headers
        assert "Origin" in response.headers["Vary"]
    for path, origin in (("/platform/v1/status", PAGE), ("/", PAGE), ("/v1/models", f"{PAGE}.evil.example")):
        for method in ("GET", "OPTIONS"):
            refused = client.open(path, method=method, headers={"Origin": origin, **asked, **BEARER})
            assert refused.status_code == 403, path
            assert "Access-Control-Allow-Origin" not in refused.headers


def test_another_site_may_link_to_the_console_but_not_post(open_with: Callable[..., FlaskClient]) -> None:
    headers = {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "navigate"}
    assert open_with().get("/", headers=headers).status_code == 200
    assert open_with().post("/", headers=headers).status_code == 403


def test_every_answer_carries_the_security_headers(open_with: Callable[..., FlaskClient]) -> None:
    client = open_with()
    for path in ("/", "/health", "/nothing", "/platform/v1/status"):
        headers = client.get(path).headers
        assert "default-src 'self'" in headers["Content-Security-Policy"]
        assert "frame-ancestors 'none'" in headers["Content-Security-Policy"]
        assert "unsafe" not in headers["Content-Security-Policy"]
        assert headers["X-Content-Type-Options"] == "nosniff"
        assert headers["Cache-Control"] == "no-store"  # all of these are JSON


def test_management_body_with_unknown_field_names_it(client: FlaskClient) -> None:
    """The application as a whole asks for the token before it reads a body."""
    response = client.post("/platform/v1/plan", data=msgspec.json.encode({"nonsense": 1}))
    assert response.status_code == 401


@pytest.mark.parametrize(
    ("method", "path", "form"),
    [
        ("POST", "/login", {"name": "a\0b", "password": "x"}),
        ("POST", "/setup", {"token": "\0", "name": "a"}),
        ("GET", "/platform/v1/users/a%00b", None),
        ("GET", "/platform/v1/versions/a%00b", None),
        ("GET", "/platform/v1/pulls/a%00b", None),
        ("DELETE", "/platform/v1/sessions/a%00b", None),
        ("GET", "/platform/v1/audit?action=a%00b", None),
        ("GET", "/platform/v1/usage?k%00=1", None),
    ],
)
def test_a_nul_character_is_refused_wherever_it_comes(
    site: Site, site_client: FlaskClient, method: str, path: str, form: dict[str, str] | None
) -> None:
    headers = {"Authorization": f"Bearer {site.token}"}
    response = site_client.open(path, method=method, data=form, headers=headers)
    assert response.status_code == 400
    assert "NUL" in response.get_json()["error"]["message"]


def test_a_page_in_the_clear_may_not_use_a_server_with_tls(open_with: Callable[..., FlaskClient]) -> None:
    client = open_with()
    for base, origin, status in (
        ("https://localhost", "http://localhost", 403),
        ("https://localhost", "https://localhost", 200),
        ("http://localhost", "http://localhost", 200),
        ("http://localhost", "https://localhost", 200),  # a proxy has ended TLS
    ):
        response = client.get("/health", base_url=base, headers={"Origin": origin})
        assert response.status_code == status, (base, origin)
