"""What a stranger tries, over the whole application; rights and logins are tested in accounts/.

Elsewhere: names in weight files (tests/platform/weights/test_shards.py), addresses that models are fetched
from (tests/model_registry/test_guarded_http.py), limits of chat templates (tests/platform/text), garbage on
an engine's socket (tests/platform/engine/test_process.py), slow clients (test_slow_clients.py).
"""

from __future__ import annotations

import json
import os
import re
import stat
import time
import urllib.error
import urllib.request
from typing import TYPE_CHECKING, Any

import pytest

from trivet_registry.keys_store import KeySettings, create_key
from trivet_registry.users_store import create_user
from trivet_web.accounts.passwords import hash_password
from trivet_web.api.openapi import routes_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from conftest import Server, Site
    from flask.testing import FlaskClient

PROMPT = "canary-prompt-7b1e"
PASSWORD, WRONG_PASSWORD = "canary-password-4f0c", "canary-wrong-9d2a"
WRONG_KEY = "sk-tv-canary-key-55aa"
CHAT = {"model": "demo", "messages": [{"role": "user", "content": PROMPT}], "max_tokens": 2}


def bearer(client: FlaskClient) -> dict[str, str]:
    return {"Authorization": f"Bearer {client.application.extensions['trivet'].token}"}


# ---- headers, origins, hosts ---------------------------------------------------------------------


def test_every_route_answers_with_the_security_headers(client: FlaskClient) -> None:
    paths = {
        (method, re.sub(r"<(?:\w+:)?\w+>", "7", rule.rule))
        for rule, method, _ in routes_of(client.application)
    }
    paths |= {
        ("GET", "/console/files/x/shell/tokens.css"),
        ("GET", "/nothing/here"),
        ("OPTIONS", "/v1/models"),
    }
    for method, path in sorted(paths):
        with client.open(path, method=method, headers=bearer(client), data=b"[") as response:
            headers = response.headers
        policy = headers["Content-Security-Policy"]
        assert policy.startswith("default-src 'self'"), path
        assert "unsafe" not in policy, path
        for part in ("frame-ancestors 'none'", "object-src 'none'", "base-uri 'none'", "form-action 'self'"):
            assert part in policy, path
        assert headers["X-Content-Type-Options"] == "nosniff", path
        assert headers["X-Frame-Options"] == "DENY", path
        assert headers["Referrer-Policy"] == "same-origin", path
        assert headers["Cross-Origin-Opener-Policy"] == "same-origin", path
        if response.mimetype == "application/json":
            assert headers["Cache-Control"] == "no-store", path


def test_no_page_of_ours_has_a_script_or_style_in_it(client: FlaskClient) -> None:
    """The policy forbids it, so it would be a page that does not work."""
    for path in ("/login", "/setup", "/setup?token=x"):  # those with a login: console/test_views.py
        page = client.get(path, headers={"Accept": "text/html"}).text
        assert "<html" in page
        assert not re.search(r"<script(?![^>]*\bsrc=)|<style|\sstyle=|\son\w+=|javascript:", page), path
        assert not re.search(r"(?:src|href|action)=\"(?!/|#)", page), "nothing is of another origin"


@pytest.mark.parametrize("method", ["GET", "POST", "OPTIONS"])
def test_no_other_origin_is_told_that_it_may_read(client: FlaskClient, method: str) -> None:
    headers = {"Origin": "https://evil.example", "Access-Control-Request-Method": "POST"}
    response = client.open("/v1/models", method=method, headers=headers)
    assert response.status_code == 403
    assert not [name for name in dict(response.headers) if name.startswith("Access-Control")]


@pytest.mark.parametrize("host", ["evil.example", "[", "[::1", "a" * 5000, "localhost@evil.example", "\xff"])
def test_a_strange_host_is_refused_and_breaks_nothing(client: FlaskClient, host: str) -> None:
    response = client.get("/health", environ_overrides={"HTTP_HOST": host})
    assert response.status_code == 400, response.text


# ---- sizes ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("body", "status"),
    [
        (b"x" * (9 << 20), 413),
        (b"[" * 100_000, 400),
        (b'{"model": ' + b"[" * 10_000 + b"]" * 10_000 + b"}", 400),
        (b'{"model": "demo", "messages": ' + b'{"a":' * 50_000 + b"1" + b"}" * 50_000 + b"}", 400),
        (b'{"model": "demo", "messages": [], "seed": ' + b"9" * 100_000 + b"}", 400),
        (b'{"model": "\\ud800", "messages": []}', 400),
        (b"\xff\xfe", 400),
        (b"", 400),
        (json.dumps({**CHAT, "n": 100_000}).encode(), 400),
        (json.dumps({**CHAT, "stop": ["a"] * 100_000}).encode(), 400),
        (json.dumps({**CHAT, "max_tokens": 10**9}).encode(), 400),
        (json.dumps({**CHAT, "n": 100, "logit_bias": {str(n): 0.1 for n in range(50_000)}}).encode(), 400),
    ],
    ids=range(12),
)
def test_what_is_too_large_is_refused_quickly(client: FlaskClient, body: bytes, status: int) -> None:
    begun_s = time.monotonic()
    response = client.post("/v1/chat/completions", data=body, content_type="application/json")
    assert response.status_code == status, response.text[:300]
    assert len(response.data) < 4096
    assert time.monotonic() - begun_s < 20


# ---- paths ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "path",
    [
        *("../../etc/passwd", "etc/passwd", "/etc/passwd", "/etc", "/proc/self/environ", "/dev/zero"),
        *("/dev/stdin", "~root/x", "~nobodyhere/x", "/nothing/\0/here", "file:///etc/passwd", "", "."),
    ],
)
def test_what_is_no_model_is_refused_and_none_of_it_is_shown(client: FlaskClient, path: str) -> None:
    for url, body in (
        ("/platform/v1/models", {"path": path}),
        ("/platform/v1/plan", {"model": path or "/"}),
        ("/platform/v1/deployments", {"model": path or "/", "name": "x", "backend": "null"}),
    ):
        response = client.post(url, json=body, headers=bearer(client))
        assert response.status_code in (400, 403, 404), (url, response.text)
        assert "root:" not in response.text


@pytest.mark.parametrize(
    "path",
    [
        *("/console/files/x/../../../../etc/passwd", "/console/files/x/..%2f..%2f..%2fetc/passwd.js"),
        "/console/files/x/%2e%2e/%2e%2e/app.py",
        *(
            "/console/files/x/%00.js",
            "/console/files/x//etc/passwd",
            "/v1/files/..%2f..%2frun%2ftoken/content",
        ),
        *("/v1/files/file_../content", "/platform/v1/logs/..%2f..%2frun%2ftoken"),
        "/platform/v1/logs/%2fetc%2fpasswd",
    ],
)
def test_no_address_leads_out_of_its_folder(client: FlaskClient, path: str) -> None:
    with client.get(path, headers=bearer(client)) as response:
        assert response.status_code in (308, 400, 404), path
        assert client.application.extensions["trivet"].token not in response.text


# ---- what is left behind -------------------------------------------------------------------------


@pytest.fixture
def key(site: Site) -> str:
    """Of a user, so that nothing is open."""
    password_hash = hash_password(PASSWORD)
    with site.database.session() as session:
        user = create_user(session, "admin", "admin", password_hash)
        return create_key(session, user, KeySettings("k", scopes=["infer", "read"]))[1]


def ask(server: Server, path: str, body: Any, **headers: str) -> bytes:
    request = urllib.request.Request(
        server.url + path,
        None if body is None else json.dumps(body).encode(),
        {"Content-Type": "application/json", **headers},
    )
    try:
        with urllib.request.urlopen(request, timeout=30) as response:
            return bytes(response.read()) + str(response.headers).encode()
    except urllib.error.HTTPError as error:
        with error:
            return bytes(error.read())


def test_prompts_answers_and_secrets_are_in_no_file_and_no_log(
    site: Site, key: str, start_server: Callable[..., Server], capfd: pytest.CaptureFixture[str]
) -> None:
    site.start_engine()
    server = start_server(TRIVET_LOG_LEVEL="DEBUG")
    mine, foreign = {"Authorization": f"Bearer {key}"}, {"Authorization": f"Bearer {WRONG_KEY}"}
    texts = {"role": "user", "content": PROMPT}
    assert b"w0" in ask(server, "/v1/chat/completions", CHAT, **mine)
    for path, body in (
        ("/v1/chat/completions", {**CHAT, "stream": True}),
        ("/v1/chat/completions", {**CHAT, "temperature": PROMPT}),
        ("/v1/chat/completions", {**CHAT, "max_tokens": 10**6}),
        ("/v1/chat/completions", {**CHAT, "model": "nothing"}),
        ("/v1/completions", {"model": "demo", "prompt": PROMPT, "max_tokens": 2}),
        ("/v1/responses", {"model": "demo", "input": PROMPT, "max_output_tokens": 2}),
        ("/v1/embeddings", {"model": "demo", "input": PROMPT}),
        ("/v1/messages", {"model": "demo", "max_tokens": 2, "messages": [texts]}),
        ("/api/chat", {"model": "demo", "messages": [texts], "options": {"num_predict": 2}}),
        ("/api/generate", {"model": "demo", "prompt": PROMPT, "options": {"num_predict": 2}}),
        ("/generate", {"inputs": PROMPT, "parameters": {"max_new_tokens": 2}}),
        ("/tokenize", {"model": "demo", "prompt": PROMPT}),
        ("/v1/chat/completions", PROMPT),
    ):
        ask(server, path, body, **mine)
        ask(server, path, body, **foreign)
    good = ask(server, "/platform/v1/sessions", {"name": "admin", "password": PASSWORD})
    session = re.search(rb"trivet_session=(ts-[\w-]+)", good)
    assert session is not None
    ask(server, "/platform/v1/sessions", {"name": "admin", "password": WRONG_PASSWORD})
    ask(server, "/platform/v1/sessions", {"name": WRONG_PASSWORD, "password": "x" * 12})
    ask(server, f"/setup?token={WRONG_KEY}", None)
    ask(server, f"/v1/models?key={WRONG_KEY}", None, **mine)
    ask(server, "/platform/v1/status", None, Cookie=f"trivet_session={session[1].decode()}")
    assert server.terminate() == 0
    left = {"the output": "".join(capfd.readouterr()).encode()}
    for folder, _, names in os.walk(site.settings.home):
        for name in names:
            place = os.path.join(folder, name)
            if stat.S_ISREG(os.stat(place).st_mode) and name != "token":
                with open(place, "rb") as file:
                    left[place] = file.read()
    assert any(place.endswith("registry.db") for place in left)
    assert b"request_id=" in left["the output"], "there is a log to look at"
    secrets = (
        PROMPT,
        PASSWORD,
        WRONG_PASSWORD,
        WRONG_KEY,
        key,
        session[1].decode(),
        site.token,
        "w0w1",
        "w0 w1",
    )
    found = [(secret, place) for place, data in left.items() for secret in secrets if secret.encode() in data]
    assert not found


def test_files_of_a_site_are_closed_to_other_accounts(
    site: Site, key: str, start_server: Callable[..., Server]
) -> None:
    site.start_engine()
    server = start_server(TRIVET_STORE_RESPONSES="true")
    body = {"model": "demo", "input": PROMPT, "max_output_tokens": 2}
    ask(server, "/v1/responses", body, Authorization=f"Bearer {key}")
    home = site.settings.paths.home
    modes = {
        place.relative_to(home).as_posix(): stat.S_IMODE(place.stat().st_mode)
        for place in (home, *home.rglob("*"))
    }
    assert modes["."] == modes["run"] == modes["stored"] == 0o700
    for name in ("registry.db", "registry.db-wal", "run/token", "run/limits.db"):
        assert modes[name] == 0o600, name
    stored = [name for name in modes if name.startswith("stored/responses/")]
    assert stored
    assert all(modes[name] & 0o077 == 0 for name in stored)
