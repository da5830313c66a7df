"""A hub on this host that speaks what Hugging Face and ModelScope speak, and fails as real ones do."""

from __future__ import annotations

import hashlib
import json
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import parse_qs, unquote, urlsplit

COMMIT = "c0ffee" + "0" * 34


@dataclass
class Hub:
    """One repository, `org/tiny`; tests change what goes wrong."""

    files: dict[str, bytes]
    url: str = ""
    cut_after: list[int] = field(default_factory=list)  # bytes until the connection ends, of each next answer
    refuse: list[int] = field(default_factory=list)  # status of each next answer with a file
    ignores_ranges: bool = False
    corrupts: str = ""  # this file is sent with a byte flipped
    sha256_of: dict[str, str] = field(default_factory=dict)  # which are said to be these of files
    tells_sizes: bool = True
    redirects_to: str = ""  # where files are said to be; empty: on this server
    token: str = ""  # without it everything is 401
    large: int = 512  # files of so many bytes are LFS's
    ranges: list[str | None] = field(default_factory=list)  # that were asked for, of files
    held: threading.Event | None = None  # an answer with a file waits for it after its first bytes


def lfs(data: bytes) -> dict[str, object]:
    return {"sha256": hashlib.sha256(data).hexdigest(), "size": len(data)}


class Handler(BaseHTTPRequestHandler):
    """Paths of both hubs."""

    hub: Hub

    def log_message(self, *_: object) -> None:
        """Say nothing."""

    def do_GET(self) -> None:
        hub, parts = self.hub, urlsplit(self.path)
        path, query = unquote(parts.path), parse_qs(parts.query)
        if hub.token and self.headers.get("Authorization") != f"Bearer {hub.token}" and "/cdn/" not in path:
            self._json(401, {"error": "no"})
        elif re.fullmatch(rf"/api/models/org/tiny/revision/(main|v1|{COMMIT})", path):
            siblings = [self._sibling(name, data) for name, data in hub.files.items()]
            self._json(200, {"sha": COMMIT, "siblings": siblings, "likes": 3})
        elif path == "/api/v1/models/org/tiny/repo/files":
            self._json(
                200, {"Code": 200, "Data": {"Files": [self._scope(n, d) for n, d in hub.files.items()]}}
            )
        elif path == "/api/v1/models/org/tiny/repo":
            self._file(query["FilePath"][0])
        elif path.startswith(prefix := f"/org/tiny/resolve/{COMMIT}/"):
            name = path.removeprefix(prefix)
            if len(hub.files.get(name, b"")) >= hub.large:
                self.send_response(302)
                self.send_header("Location", (hub.redirects_to or hub.url) + f"/cdn/{name}")
                self.send_header("Content-Length", "0")
                self.end_headers()
            else:
                self._file(name)
        elif path.startswith("/cdn/"):
            self._file(path.removeprefix("/cdn/"))
        else:
            self._json(404, {"error": "not found"})

    def _sibling(self, name: str, data: bytes) -> dict[str, object]:
        blob = hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest()
        large = {"lfs": lfs(data)} if len(data) >= self.hub.large else {}
        if name in self.hub.sha256_of:
            large = {"lfs": {"sha256": self.hub.sha256_of[name], "size": len(data)}}
        size = {"size": len(data)} if self.hub.tells_sizes else {}
        return {"rfilename": name, **size, "blobId": blob, **large}

    def _scope(self, name: str, data: bytes) -> dict[str, object]:
        sha256 = self.hub.sha256_of.get(name, hashlib.sha256(data).hexdigest())
        return {"Path": name, "Size": len(data), "Sha256": sha256, "Type": "blob"}

    def _json(self, status: int, value: object) -> None:
        body = json.dumps(value).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def _file(self, name: str) -> None:
        hub, asked = self.hub, self.headers.get("Range")
        hub.ranges.append(asked)
        if hub.refuse:
            return self._json(hub.refuse.pop(0), {"error": "come again"})
        data = hub.files[name]
        if name == hub.corrupts:
            data = data[:-1] + bytes([data[-1] ^ 1])
        start = int(asked[6:-1]) if asked and not hub.ignores_ranges else 0
        part = data[start:]
        self.send_response(206 if start else 200)
        self.send_header("Content-Length", str(len(part)))
        self.send_header("ETag", f'"{hashlib.sha256(data).hexdigest()}"')
        if start:
            self.send_header("Content-Range", f"bytes {start}-{len(data) - 1}/{len(data)}")
        self.end_headers()
        if hub.held is not None and len(part) > 100:
            self.wfile.write(part[:100])
            self.wfile.flush()
            hub.held.wait(30)
            part = part[100:]
        if hub.cut_after and (count := hub.cut_after.pop(0)) < len(part):
            self.wfile.write(part[:count])
            self.wfile.flush()
            self.connection.close()
            return None
        self.wfile.write(part)
        return None

    def handle(self) -> None:
        try:
            super().handle()
        except (OSError, ValueError):
            """The client is gone, or the test cut the connection."""


def read_files(folder: Path) -> dict[str, bytes]:
    """As `Hub.files`."""
    found = sorted(path for path in folder.rglob("*") if path.is_file())
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in found}


@contextmanager
def serving(hub: Hub) -> Iterator[Hub]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), type("HubHandler", (Handler,), {"hub": hub}))
    server.daemon_threads = True
    hub.url = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        yield hub
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
