"""`trivet users`, `keys`, `audit`, `usage` against a real server, and a program with the key they made."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import pytest
from sqlalchemy import text

from trivet import cli
from trivet.client import Client
from trivet.errors import AuthenticationError, ModelNotFound, PermissionDenied
from trivet_registry.audit_log import list_entries
from trivet_registry.users_store import create_user, get_user, set_disabled
from trivet_web.accounts.passwords import hash_password, is_password

if TYPE_CHECKING:
    from collections.abc import Callable

    from conftest import Eventually, Live, Server, Site

TRIVET = str(Path(sys.executable).with_name("trivet"))
PASSWORD = "correct horse battery"


class Command(Protocol):
    """A `trivet` command in this process, with its input; as a program it has a test of its own."""

    def __call__(self, *arguments: str, given: str = "") -> subprocess.CompletedProcess[str]: ...


@pytest.fixture
def trivet_in(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Command]:
    """A function of a home, and of options of all commands there."""

    def of(home: str, *options: str) -> Command:
        def run(*arguments: str, given: str = "") -> subprocess.CompletedProcess[str]:
            monkeypatch.setenv("TRIVET_HOME", home)
            monkeypatch.setattr(sys, "stdin", io.StringIO(given))
            out, err = io.StringIO(), io.StringIO()
            with redirect_stdout(out), redirect_stderr(err):
                code = cli.main([*arguments, *options])
            return subprocess.CompletedProcess(arguments, code, out.getvalue(), err.getvalue())

        return run

    return of


def test_a_command_is_a_program(live: Live) -> None:
    env = {**os.environ, "TRIVET_HOME": live.site.settings.home}
    command = [TRIVET, "users", "add", "eve", "--url", live.server.url]
    done = subprocess.run(command, env=env, input="short\n", capture_output=True, text=True, timeout=60)
    assert (done.returncode, "at least 12" in done.stderr) == (1, True)


def test_from_the_first_user_to_the_bill(
    site: Site,
    start_server: Callable[..., Server],
    trivet_in: Callable[..., Command],
    eventually: Eventually,
) -> None:
    site.start_engine()
    server = start_server()
    trivet = trivet_in(site.settings.home, "--url", server.url)

    def answer(*arguments: str, given: str = "") -> Any:
        done = trivet(*arguments, "--json", given=given)
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    added = trivet("users", "add", "Alice", "--role", "admin", given=PASSWORD + "\n")
    assert added.stdout == "alice can log in, as admin\n", added.stderr
    short = trivet("users", "add", "bob", given="short\n")
    assert short.returncode == 1
    assert "at least 12" in short.stderr
    assert [user["name"] for user in answer("users", "list")] == ["alice"]
    last = trivet("users", "disable", "alice")
    assert "the last admin" in last.stderr
    answer("users", "add", "bob", given=PASSWORD + "\n")
    assert answer("users", "role", "bob", "viewer")["role"] == "viewer"
    made = trivet(
        "keys", "create", "ci", "--model", "demo", "--requests-per-minute", "600", "--expires", "90d"
    )
    key = made.stdout.strip()
    assert key.startswith("sk-tv-")
    assert key not in made.stderr
    again = trivet("keys", "create", "ci", "--model", "dmeo")
    first, second = again.stderr.splitlines()[:2]
    assert first == "no deployment is named 'dmeo' yet; there are: demo"
    assert second == "key 1 has the name 'ci', too"
    assert not trivet("keys", "create", "another", "--model", "demo").stderr.startswith("no ")
    assert "keys 1, 2 are named 'ci'" in trivet("keys", "revoke", "ci").stderr
    trivet("keys", "revoke", "2")
    assert trivet("keys", "revoke", "another").stdout.startswith("key 3 ")
    assert "no key that works is named 'another'" in trivet("keys", "revoke", "another").stderr
    with Client(server.url, key) as client:
        assert client.completions.complete("demo", "Hello", max_tokens=4).usage.completion_tokens == 4
        with pytest.raises(ModelNotFound, match="deployed: demo"):
            client.completions.complete("other", "Hello")
        with pytest.raises(PermissionDenied, match="has: infer"):
            client.deployments.list()
    listed = answer("keys", "list")[-1]
    assert (listed["name"], listed["models"], listed["key"]) == ("ci", ["demo"], None)
    assert "600" in trivet("keys", "list").stdout
    assert answer("keys", "update", str(listed["id"]), "--priority", "4")["priority"] == 4
    eventually(lambda: answer("usage")["data"])
    (row,) = answer("usage", "--all")["data"]
    assert (row["model"], row["requests"], row["completion_tokens"]) == ("demo", 1, 4)
    assert trivet("usage", "--csv").stdout.splitlines()[1].endswith(",4,")
    trivet("keys", "revoke", str(listed["id"]))
    with Client(server.url, key) as client, pytest.raises(AuthenticationError, match="revoked"):
        client.completions.complete("demo", "Hello")
    with Client(server.url, "") as client:
        assert client.sessions.open("bob", PASSWORD).role == "viewer"
    whole = trivet("audit", "verify")
    assert whole.returncode == 0
    anchor = whole.stdout.split("anchor ")[1].strip()
    assert "key.revoke" in trivet("audit", "list").stdout
    assert PASSWORD not in trivet("audit", "list").stdout
    with site.database.session() as session:
        session.execute(text("UPDATE audit_log SET target = 'user eve' WHERE id = 2"))
    spoilt = trivet("audit", "verify", "--anchor", anchor)
    assert spoilt.returncode == 1
    assert "entry 2 is not what was written" in spoilt.stderr


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["keys", "create", "x", "--expires", "soon"], "--expires is 'soon'"),
        (
            ["keys", "create", "x", "--expires", "9999999999d"],
            "--expires 9999999999d is beyond the year 9999",
        ),
        (["keys", "create", "x", "--scope", "root"], "'root' does not exist"),
        (["keys", "revoke", "77"], "key 77 does not exist"),
        (["users", "role", "nobody", "admin"], "'nobody' does not exist"),
        (["usage", "--first", "yesterday"], "--first is 'yesterday'"),
        (["audit", "verify", "--anchor", "x"], "anchor is 'x'"),
    ],
)
def test_a_mistake_is_told_in_a_sentence(
    live: Live, trivet_in: Callable[..., Command], arguments: list[str], message: str
) -> None:
    done = trivet_in(live.site.settings.home, "--url", live.server.url)(*arguments)
    assert done.returncode in (1, 2)
    assert message in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_a_forgotten_password_is_set_anew_on_the_host_without_a_server(
    site: Site, trivet_in: Callable[..., Command], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TRIVET_DATABASE_URL", site.settings.resolved_database_url)
    run = trivet_in(site.settings.home)
    with site.database.session() as session:
        create_user(session, "root", "admin", hash_password("a password nobody knows"))
        create_user(session, "other", "admin", hash_password("a password nobody knows"))
        set_disabled(session, get_user(session, "other"), True)
    done = run("users", "passwd", "root", given=PASSWORD + "\n")
    assert (done.returncode, "done on the home itself" in done.stderr) == (0, True), done.stderr
    with site.database.reading() as session:
        assert is_password(PASSWORD, get_user(session, "root").password_hash)
        entry = list_entries(session)[0]
        assert (entry.actor, entry.action, entry.target) == ("the run token", "user.change", "root")
    assert run("users", "enable", "other").returncode == 0
    assert run("users").stdout == run("users", "list").stdout
    assert "root" in run("users").stdout
    assert "user.change" in run("audit").stdout
    assert run("keys").returncode == 0
    assert "no password came on standard input" in run("users", "add", "bob").stderr
    assert "'nobody'" in run("users", "passwd", "nobody").stderr
    short = run("users", "passwd", "root", given="short\n")
    assert (short.returncode, "at least 12" in short.stderr) == (1, True)
    assert run("keys", "create", "ci").stdout.startswith("sk-tv-")
    assert "whole" in run("audit", "verify").stdout
    exported = [json.loads(line) for line in run("audit", "export").stdout.splitlines()]
    assert [entry["id"] for entry in exported] == list(range(len(exported), 0, -1))
    assert run("usage", "--csv").returncode == 0
    elsewhere = run("users", "list", "--url", "http://127.0.0.1:9")
    assert elsewhere.returncode != 0, "another site's server is off: this home is none of it"
