"""Requests of models go to public addresses, and to those of the site's settings."""

from __future__ import annotations

import sys
from pathlib import Path

import httpx2
import pytest

from trivet.errors import PermissionDenied
from trivet_registry.sources.guarded_http import GuardedTransport, guarded_client

sys.path.append(str(Path(__file__).parent))  # local_hub
from local_hub import COMMIT, Hub, serving


class Recording(httpx2.BaseTransport):
    """Keeps where a connection would have gone."""

    def __init__(self) -> None:
        self.sent: list[tuple[str, str, str]] = []

    def handle_request(self, request: httpx2.Request) -> httpx2.Response:
        name = request.extensions["sni_hostname"]
        self.sent.append((request.url.host, request.headers["host"], name))
        return httpx2.Response(200, content=b"ok")


@pytest.mark.parametrize(
    "address",
    [
        "127.0.0.1",
        "10.1.2.3",
        "192.168.0.1",
        "172.16.0.1",
        "169.254.169.254",
        "100.64.0.1",
        "0.0.0.0",
        "224.0.0.1",
        "::1",
        "fe80::1",
        "64:ff9b::a9fe:a9fe",
        "fec0::1",
        "::7f00:1",
        "fd00::1",
        "::ffff:127.0.0.1",
        "2002:7f00:1::",
    ],
)
def test_an_address_that_is_not_public_is_refused(address: str) -> None:
    inner = Recording()
    transport = GuardedTransport(resolves=lambda host, port: ["93.184.215.14", address], inner=inner)
    with httpx2.Client(transport=transport) as http, pytest.raises(PermissionDenied, match="not public"):
        http.get("https://models.example/x")
    assert not inner.sent


@pytest.mark.parametrize("host", ["127.0.0.1", "2130706433", "0x7f.1", "[::1]", "localhost"])
def test_every_spelling_of_this_host_is_refused(host: str) -> None:
    with guarded_client() as http, pytest.raises((PermissionDenied, httpx2.InvalidURL)):
        http.get(f"https://{host}:1/x")


def test_the_connection_goes_to_the_address_that_was_looked_at() -> None:
    answers = iter([["93.184.215.14"], ["127.0.0.1"]])  # the name is bound anew after the first look
    inner = Recording()
    transport = GuardedTransport(resolves=lambda host, port: next(answers), inner=inner)
    with httpx2.Client(transport=transport) as http:
        assert http.get("https://models.example/x").text == "ok"
        with pytest.raises(PermissionDenied, match=r"127\.0\.0\.1"):
            http.get("https://models.example/x")
    assert inner.sent == [("93.184.215.14", "models.example", "models.example")]


def test_plain_http_is_refused_but_where_the_site_allows_it() -> None:
    transport = GuardedTransport(resolves=lambda host, port: ["93.184.215.14"], inner=Recording())
    with httpx2.Client(transport=transport) as http, pytest.raises(PermissionDenied, match="not https"):
        http.get("http://models.example/x")


def test_a_redirect_is_looked_at_like_a_request() -> None:
    with serving(Hub({"a.gguf": b"x" * 600})) as mirror, serving(Hub({"a.gguf": b"secret" * 100})) as other:
        mirror.redirects_to = other.url  # another port of this host, which no setting names
        with guarded_client([mirror.url]) as http, pytest.raises(PermissionDenied, match="not https"):
            http.get(f"{mirror.url}/org/tiny/resolve/{COMMIT}/a.gguf")
        assert other.ranges == []
        with guarded_client([mirror.url, other.url]) as http:
            assert http.get(f"{mirror.url}/org/tiny/resolve/{COMMIT}/a.gguf").content == b"secret" * 100
