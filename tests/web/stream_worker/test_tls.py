"""The real server with a certificate: the same answers, and what goes wrong between plain text and TLS."""

from __future__ import annotations

import asyncio
import shutil
import socket
import ssl
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, cast

import pytest
from raw_http import post as post_bytes
from raw_http import read_answer, read_until

from trivet.access import check_bind
from trivet.bench.target import Target
from trivet.client import AsyncClient, Client
from trivet.config import Settings
from trivet.errors import ConfigError, ContextLengthExceeded, Unavailable
from trivet_web.stream_worker.client_socket import TlsClientSocket
from trivet_web.stream_worker.delivery import Outbox

if TYPE_CHECKING:
    from conftest import Eventually, Server, Site

pytestmark = pytest.mark.skipif(shutil.which("openssl") is None, reason="openssl makes the certificates")
ANSWER_BYTES = 4 << 20
RUNNING = "trivet:num_requests_running"
EC = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2")


@dataclass(frozen=True)
class Pair:
    """Files of one certificate."""

    cert: Path
    key: Path

    @property
    def environment(self) -> dict[str, str]:
        return {"TRIVET_TLS_CERT": str(self.cert), "TRIVET_TLS_KEY": str(self.key)}


@dataclass(frozen=True)
class Authority:
    """Signs certificates."""

    folder: Path

    @property
    def cert(self) -> Path:
        return self.folder / "ca.pem"

    def issue(self, name: str) -> Pair:
        pair = Pair(self.folder / f"{name}.pem", self.folder / f"{name}.key")
        ca = ("-CA", str(self.cert), "-CAkey", str(self.folder / "ca.key"))
        names = "subjectAltName=DNS:localhost,IP:127.0.0.1"
        openssl(*EC, *ca, "-keyout", pair.key, "-out", pair.cert, "-subj", f"/CN={name}", "-addext", names)
        return pair


def openssl(*options: object) -> None:
    subprocess.run(["openssl", "req", "-x509", *map(str, options)], check=True, capture_output=True)


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    made = Authority(tmp_path_factory.mktemp("tls"))
    openssl(*EC, "-keyout", made.folder / "ca.key", "-out", made.cert, "-subj", "/CN=Test authority")
    return made


@dataclass
class Secure:
    """A server with TLS, its site, and who signed its certificate."""

    site: Site
    server: Server
    authority: Authority

    @property
    def url(self) -> str:
        return f"https://127.0.0.1:{self.server.port}"

    @contextmanager
    def connect(self) -> Iterator[ssl.SSLSocket]:
        context = ssl.create_default_context(cafile=self.authority.cert)
        with self.server.connect() as sock, context.wrap_socket(sock, server_hostname="localhost") as secured:
            yield secured


@pytest.fixture(scope="module")
def secure(
    new_site: Callable[[], AbstractContextManager[Site]],
    run_server: Callable[..., Server],
    authority: Authority,
) -> Iterator[Secure]:
    with new_site() as site:
        yield Secure(site, run_server(site, **authority.issue("server").environment), authority)


def test_library_streams_over_tls_for_threads_and_for_asyncio(secure: Secure) -> None:
    model = secure.site.serve("--step-s", "0.01").model
    ca, token = str(secure.authority.cert), secure.site.token

    async def texts() -> list[str]:
        async with (
            AsyncClient(secure.url, token, ca_file=ca) as client,
            client.completions.stream(model, "x", max_tokens=3) as chunks,
        ):
            return [chunk.text async for chunk in chunks]

    with Client(secure.url, token, ca_file=ca) as client:
        assert client.status().version
        with pytest.raises(ContextLengthExceeded, match="200000 bytes"):  # a body of many TLS records
            client.completions.complete(model, "y" * 200_000)
        with client.completions.stream(model, "x", max_tokens=3) as chunks:
            streamed = [chunk.text for chunk in chunks]
    assert "".join(streamed) == "w0 w1 w2 "
    assert "".join(asyncio.run(texts())) == "w0 w1 w2 "


def test_a_load_trusts_whom_the_settings_and_the_command_name(
    secure: Secure, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An address of another host: on this one the server of the home is known by its own certificate."""
    monkeypatch.setenv("TRIVET_HOME", secure.site.settings.home)
    ca = str(secure.authority.cert)
    for target in (Target("https://localhost.", "demo"), Target("https://localhost.", "demo", ca_file=ca)):
        monkeypatch.setenv("TRIVET_TLS_CA", "" if target.ca_file else ca)
        context = target.tls
        assert context is not None
        with secure.server.connect() as sock, context.wrap_socket(sock, server_hostname="localhost"):
            pass


def test_client_without_the_authority_is_told_what_to_give(secure: Secure) -> None:
    system = ssl.get_default_verify_paths().openssl_cafile
    empty = str(secure.authority.issue("other").cert)
    assert system != empty
    with (
        Client(secure.url, "", ca_file=empty, max_retries=0) as client,
        pytest.raises(Unavailable, match=r"certificate of https.* is not trusted .*--ca-file"),
    ):
        client.status()


def test_client_that_hangs_up_is_aborted_before_and_after_the_first_token(
    secure: Secure, eventually: Eventually
) -> None:
    late, even = secure.site.serve("--first-s", "60").model, secure.site.serve("--step-s", "0.05").model
    with Client(secure.url, secure.site.token, ca_file=str(secure.authority.cert)) as client:

        def num_running() -> int:
            return sum(one.load.num_running if one.load else 0 for one in client.instances.list())

        with secure.connect() as waiting, secure.connect() as flowing:
            for sock, model in ((waiting, late), (flowing, even)):
                body = {"model": model, "prompt": "x", "max_tokens": 480, "stream": True}
                sock.sendall(post_bytes("/v1/completions", body))
            read_until(flowing, b"w0 ")
            eventually(lambda: num_running() == 2, what="both run")
        eventually(lambda: num_running() == 0, what="both are aborted")


def test_plain_text_to_a_port_of_tls_and_the_reverse_are_told(
    secure: Secure, start_server: Callable[..., Server]
) -> None:
    status, body = secure.server.get("/health")
    assert (status, body) == (400, b"this port speaks HTTPS; ask for https:// instead of http://\n")
    plain = start_server()
    with (
        Client(f"https://127.0.0.1:{plain.port}", "", max_retries=0) as client,
        pytest.raises(Unavailable, match=r"does not answer in TLS .*ask for http://"),
    ):
        client.status()


def test_stalled_handshakes_hold_up_nobody(secure: Secure) -> None:
    stalled = [secure.server.connect() for _ in range(100)]
    try:
        for number, sock in enumerate(stalled):
            sock.sendall((b"", b"\x16", b"\x16\x03\x01\x02\x00\x01\x00")[number % 3])
        with secure.connect() as sock:
            sock.sendall(b"GET /health/live HTTP/1.1\r\nHost: localhost\r\n\r\n")
            assert read_answer(sock)[0].startswith(b"HTTP/1.1 200")
    finally:
        for sock in stalled:
            sock.close()


def test_what_a_slow_reader_has_taken_counts_before_it_has_all(authority: Authority) -> None:
    """An answer is one part of any size; while none of it counted, readers of large ones were dropped."""
    pair = authority.issue("slow")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(pair.cert, pair.key)
    context.sslsocket_class = TlsClientSocket
    ours, theirs = socket.socketpair()
    trusting = ssl.create_default_context(cafile=authority.cert)
    with ThreadPoolExecutor(1) as pool:
        secured = pool.submit(trusting.wrap_socket, theirs, server_hostname="localhost")
        client = cast("TlsClientSocket", context.wrap_socket(ours, server_side=True))
        reader = secured.result(20)
    with client, reader:
        client.setblocking(False)
        outbox = Outbox(client)
        outbox.sendall(bytes(ANSWER_BYTES))
        num_taken = 0
        while num_taken < ANSWER_BYTES:
            assert outbox.flush() == (outbox.num_sent == ANSWER_BYTES)
            assert outbox.num_sent >= num_taken
            num_taken += len(reader.recv(64 << 10))
    assert outbox.num_sent == ANSWER_BYTES


def test_a_kept_connection_ends_with_the_end_of_tls(secure: Secure) -> None:
    with secure.connect() as sock:
        sock.sendall(b"GET /version HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
        sock.suppress_ragged_eofs = False  # a cut raises then
        data = b""
        while new := sock.recv(65536):
            data += new
    assert b'"version"' in data


def test_a_renewed_certificate_is_shown_and_a_bad_one_is_not(
    site: Site, start_server: Callable[..., Server], authority: Authority, eventually: Eventually
) -> None:
    live, renewed = authority.issue("live"), authority.issue("renewed")
    server = start_server(**live.environment)

    def name() -> object:
        context = ssl.create_default_context(cafile=authority.cert)
        with server.connect() as sock, context.wrap_socket(sock, server_hostname="localhost") as secured:
            certificate = secured.getpeercert()
            assert certificate is not None
            return dict(pair[0] for pair in certificate["subject"])["commonName"]  # type: ignore[misc]

    assert name() == "live"
    shutil.copy(renewed.cert, live.cert)  # not the key yet
    with socket.create_connection(("127.0.0.1", server.port), timeout=10):
        assert name() == "live"
    shutil.copy(renewed.key, live.key)
    eventually(lambda: name() == "renewed", what="the new one is shown")


@pytest.mark.parametrize(
    ("cert", "key", "words"),
    [
        ("a.pem", "", "tls_cert is set and tls_key is not"),
        ("", "a.key", "tls_key is set and tls_cert is not"),
        ("none.pem", "a.key", "none.pem cannot be read: No such file or directory"),
        ("a.pem", "b.key", "b.key is not the key of the certificate in tls_cert"),
        ("a.pem", "locked.key", "locked.key has a password"),
        ("a.key", "a.key", "tls_cert .*a.key holds no certificate"),
        ("a.pem", "a.pem", "tls_key .*a.pem holds no private key"),
        ("torn.pem", "a.key", "cannot be used"),
    ],
)
def test_tls_that_cannot_be_used_is_named(authority: Authority, cert: str, key: str, words: str) -> None:
    a, _ = authority.issue("a"), authority.issue("b")
    locked = authority.folder / "locked.key"
    command = ["openssl", "ec", "-in", a.key, "-aes256", "-passout", "pass:secret", "-out", locked]
    subprocess.run(command, check=True, capture_output=True)
    (authority.folder / "torn.pem").write_text(a.cert.read_text()[:120])
    files = {"tls_cert": cert, "tls_key": key}
    given = {name: str(authority.folder / file) for name, file in files.items() if file}
    with pytest.raises(ConfigError, match=words):
        check_bind(Settings(**given))


@pytest.mark.parametrize(
    "command",
    [
        ["-m", "trivet_web"],
        ["-c", "import sys, trivet.cli; sys.exit(trivet.cli.main(['serve', '--port', '0']))"],
    ],
)
def test_nothing_starts_with_tls_that_cannot_be_used(tmp_path: Path, command: list[str]) -> None:
    environment = {"TRIVET_TLS_CERT": "/none.pem", "TRIVET_TLS_KEY": "/a.key"}
    done = subprocess.run(
        [sys.executable, *command],
        env={"PATH": "/usr/bin:/bin", "TRIVET_HOME": str(tmp_path), **environment},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode != 0
    assert "/none.pem cannot be read: No such file or directory" in done.stderr
