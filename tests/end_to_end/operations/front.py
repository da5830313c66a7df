"""Debian's nginx with docker/nginx/trivet.conf, of which only addresses, names and paths are changed."""

from __future__ import annotations

import os
import re
import signal
import socket
import ssl
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import httpx2
from ports import free_port

ROOT = Path(__file__).parents[3]
CONF = ROOT / "docker" / "nginx" / "trivet.conf"
MAIN = """\
user {user};
worker_processes 2;
daemon off;
pid {folder}/nginx.pid;
error_log {folder}/error.log info;
events {{ worker_connections 1024; }}
http {{
    sendfile on;
    tcp_nopush on;
    access_log {folder}/other.log;
    gzip on;
    client_body_temp_path {folder}/body;
    proxy_temp_path {folder}/proxy;
    fastcgi_temp_path {folder}/fastcgi;
    uwsgi_temp_path {folder}/uwsgi;
    scgi_temp_path {folder}/scgi;
    include {folder}/trivet.conf;
}}
"""


@dataclass(frozen=True)
class Pair:
    """Files of one certificate."""

    cert: Path
    key: Path


def changed(text: str, old: str, new: str) -> str:
    """Raises: AssertionError where `old` is not there: the file has changed and the test has not."""
    assert old in text, f"trivet.conf has no {old!r}"
    return text.replace(old, new)


class Front:
    """nginx on two ports of 127.0.0.1, before sites of this host."""

    def __init__(
        self, folder: Path, site_ports: Sequence[int], pair: Pair, changes: Mapping[str, str]
    ) -> None:
        self.folder, self.pair = folder, pair
        self.port, self.plain_port = free_port(), free_port()
        self.url = f"https://localhost:{self.port}"
        text = CONF.read_text()
        line = next(line for line in text.splitlines() if line.strip().startswith("server 127.0.0.1:8000"))
        text = changed(text, line, "\n".join(line.replace(":8000", f":{port}", 1) for port in site_ports))
        ours = {
            "    listen [::]:80;\n": "",
            "    listen [::]:443 ssl http2;\n": "",
            "listen 80;": f"listen 127.0.0.1:{self.plain_port};",
            "listen 443 ssl": f"listen 127.0.0.1:{self.port} ssl",
            "/etc/ssl/trivet/fullchain.pem": str(pair.cert),
            "/etc/ssl/trivet/privkey.pem": str(pair.key),
            "/var/log/nginx/trivet.log": str(folder / "access.log"),
            "server_name llm.example.com;": "server_name llm.example.com localhost;",
        }
        for old, new in {**ours, **changes}.items():
            text = changed(text, old, new)
        (folder / "trivet.conf").write_text(text)
        user = "root" if os.getuid() == 0 else str(os.getuid())  # its workers need this folder
        (folder / "nginx.conf").write_text(MAIN.format(folder=folder, user=user))
        command = ["nginx", "-e", "stderr", "-c", str(folder / "nginx.conf")]
        tried = subprocess.run([*command, "-t"], capture_output=True, text=True)
        assert tried.returncode == 0, tried.stderr
        assert "[warn]" not in tried.stderr.replace('the "user" directive', ""), tried.stderr
        self._process = subprocess.Popen(command)
        deadline_s = time.monotonic() + 30
        while not self._listens():
            assert self._process.poll() is None, (folder / "error.log").read_text()
            assert time.monotonic() < deadline_s, "nginx does not listen"
            time.sleep(0.02)

    def _listens(self) -> bool:
        try:
            socket.create_connection(("127.0.0.1", self.port), timeout=5).close()
        except OSError:
            return False
        return True

    def log_with(self, text: str) -> str:
        """The access log once it has that: nginx writes a line after its answer."""
        deadline_s = time.monotonic() + 30
        while text not in (log := (self.folder / "access.log").read_text()):
            assert time.monotonic() < deadline_s, log
            time.sleep(0.02)
        return log

    def stop(self) -> None:
        self._process.send_signal(signal.SIGTERM)
        self._process.wait(30)

    @property
    def tls(self) -> ssl.SSLContext:
        return ssl.create_default_context(cafile=self.pair.cert)

    def client(self, token: str = "", address: str | None = None) -> httpx2.Client:
        """`address`: of this host, from which it asks."""
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        transport = httpx2.HTTPTransport(verify=self.tls, local_address=address)
        return httpx2.Client(base_url=self.url, headers=headers, transport=transport, timeout=120)


class Curl:
    """A stream as curl reads it, over HTTP/1.1 or HTTP/2."""

    def __init__(self, front: Front, http: str, token: str, path: str, body: str) -> None:
        headers = [f"Authorization: Bearer {token}", "Content-Type: application/json"]
        quiet = ["--silent", "--show-error", "--no-buffer"]
        asked = [f"--http{http}", "--cacert", str(front.pair.cert), "--data", body, front.url + path]
        given = [part for header in headers for part in ("--header", header)]
        self._process = subprocess.Popen(["curl", *quiet, *given, *asked], stdout=subprocess.PIPE)

    def reads(self) -> Iterator[bytes]:
        """What each read brings, up to the end."""
        assert self._process.stdout is not None
        while data := os.read(self._process.stdout.fileno(), 1 << 16):
            yield data

    def hang_up(self) -> None:
        self._process.kill()
        self._process.wait()
        assert self._process.stdout is not None
        self._process.stdout.close()


def num_events(data: bytes) -> int:
    return len(re.findall(rb"^data: \{", data, re.MULTILINE))
