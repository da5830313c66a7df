"""Requests of models go to public addresses, and to those of the site's settings."""

from __future__ import annotations

import contextlib
import socket
import sys
import threading
import time
from base64 import b64encode
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import httpx2
import pytest

from trivet.errors import PermissionDenied
from trivet_registry.sources import watched_network
from trivet_registry.sources.guarded_http import (
    READ_TIMEOUT_S,
    GuardedTransport,
    Resolve,
    guarded_client,
    resolve,
)

sys.path.append(str(Path(__file__).parent))  # local_hub
from local_hub import COMMIT, Hub, serving


def nobody_knows(host: str, port: int) -> list[str]:
    raise OSError(f"{host} is unknown")


class Recording(httpx2.BaseTransport):
    """Keeps where a connection would have gone."""

    def __init__(self) -> None:
        self.sent: list[tuple[str, str, str]] = []

    def handle_request(self, request: httpx2.Request) -> httpx2.Response:
        name = request.extensions.get("sni_hostname", "")
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
    transport = GuardedTransport(lambda: inner, resolves=lambda host, port: ["93.184.215.14", address])
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
    transport = GuardedTransport(lambda: inner, resolves=lambda host, port: next(answers))
    with httpx2.Client(transport=transport) as http:
        assert http.get("https://models.example/x").text == "ok"
        with pytest.raises(PermissionDenied, match=r"127\.0\.0\.1"):
            http.get("https://models.example/x")
    assert inner.sent == [("93.184.215.14", "models.example", "models.example")]


def test_two_names_at_one_address_share_no_connection() -> None:
    """Each is checked against its own certificate, also where one redirects to the other."""
    made: list[Recording] = []

    def make() -> Recording:
        made.append(Recording())
        return made[-1]

    transport = GuardedTransport(make, resolves=lambda host, port: ["93.184.215.14"])
    with httpx2.Client(transport=transport) as http:
        for host in ("hub.example", "files.example", "hub.example"):
            http.get(f"https://{host}/x")
    assert [[name for _, _, name in one.sent] for one in made] == [["hub.example"] * 2, ["files.example"]]


def test_plain_http_is_refused_but_where_the_site_allows_it() -> None:
    transport = GuardedTransport(Recording, resolves=lambda host, port: ["93.184.215.14"])
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


@pytest.mark.parametrize(
    ("resolves", "by_proxy", "direct"),
    [
        (lambda host, port: ["93.184.215.14"], [("models.example", "models.example", "")], []),
        (nobody_knows, [("models.example", "models.example", "")], []),
        (lambda host, port: ["10.0.0.7"], [], [("10.0.0.7", "models.example", "models.example")]),
    ],
    ids=["public", "known to the proxy alone", "private and allowed"],
)
def test_the_sites_proxy_is_asked_by_name_for_what_is_not_private(
    resolves: Resolve, by_proxy: list[tuple[str, ...]], direct: list[tuple[str, ...]]
) -> None:
    inner, proxied = Recording(), Recording()
    transport = GuardedTransport(
        lambda: inner, frozenset({"models.example:443"}), resolves=resolves, proxied=proxied
    )
    with httpx2.Client(transport=transport) as http:
        http.get("https://models.example/x")
    assert (proxied.sent, inner.sent) == (by_proxy, direct)


@pytest.mark.parametrize("host", ["10.0.0.7", "[::1]", "169.254.169.254", "internal.example"])
def test_a_proxy_is_asked_for_no_private_address(host: str) -> None:
    def resolves(name: str, port: int) -> list[str]:
        return ["10.0.0.7"] if name == "internal.example" else resolve(name, port)

    proxied = Recording()
    transport = GuardedTransport(Recording, resolves=resolves, proxied=proxied)
    with httpx2.Client(transport=transport) as http, pytest.raises(PermissionDenied, match="not public"):
        http.get(f"https://{host}/x")
    assert not proxied.sent


def test_a_real_proxy_is_asked_to_connect_to_the_name() -> None:
    asked = []

    class Proxy(BaseHTTPRequestHandler):
        def do_CONNECT(self) -> None:
            asked.append((self.path, self.headers.get("Proxy-Authorization")))
            self.send_error(403)

        def log_message(self, *_: object) -> None:
            """Say nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Proxy)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        proxy = f"http://me:pw@127.0.0.1:{server.server_port}"
        with guarded_client(resolves=nobody_knows, proxy=proxy) as http, pytest.raises(httpx2.ProxyError):
            http.get("https://models.example/x")
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
    assert asked == [("models.example:443", "Basic " + b64encode(b"me:pw").decode())]


class Trickle:
    """A server that sends the bytes it was given, one at a time."""

    def __init__(self, data: bytes, interval_s: float) -> None:
        self._data, self._interval_s = data, interval_s
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        self._ends = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        connection, _ = self._listener.accept()
        with connection, contextlib.suppress(OSError):
            for byte in self._data:
                connection.sendall(bytes([byte]))
                if self._ends.wait(self._interval_s):
                    return
            self._ends.wait()

    def close(self) -> None:
        self._ends.set()
        self._thread.join()
        self._listener.close()


HEAD = b"HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\n"


@pytest.mark.parametrize("data", [HEAD[:20] + b"x" * 500, HEAD + b"x" * 500], ids=["head", "body"])
def test_a_trickle_is_ended_in_the_head_and_in_the_body(data: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watched_network, "STALL_S", 0.3)
    server = Trickle(data, 0.01)
    try:
        with guarded_client([server.url]) as http, pytest.raises(httpx2.ReadTimeout, match="bytes came"):
            http.get(f"{server.url}/x")
    finally:
        server.close()


@pytest.mark.parametrize("data", [b"", HEAD[:20], HEAD], ids=["nothing", "half a head", "no body"])
def test_whoever_waits_for_a_silent_server_can_leave(data: bytes) -> None:
    class Enough(Exception):
        pass

    begin_s = time.monotonic()

    def check() -> None:
        if time.monotonic() > begin_s + 0.5:
            raise Enough

    server = Trickle(data, 0.0)
    try:
        with guarded_client([server.url], check=check) as http, pytest.raises(Enough):
            http.get(f"{server.url}/x")
    finally:
        server.close()
    assert time.monotonic() - begin_s < READ_TIMEOUT_S / 2
