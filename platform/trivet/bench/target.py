"""The server under load: where it is, and what a request to it looks like."""

from __future__ import annotations

import ssl
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal
from urllib.parse import urlsplit

import msgspec

from trivet.bench.prompts import Prompt
from trivet.client.home import trust_of
from trivet.errors import ConfigError

Endpoint = Literal["completions", "chat"]
PATHS: dict[Endpoint, str] = {"completions": "/v1/completions", "chat": "/v1/chat/completions"}


@dataclass(frozen=True, slots=True)
class Target:
    """Any server that speaks OpenAI's API over HTTP/1.1.

    `extra`: fields of every request, which beat the benchmark's own; None leaves a field out, for servers
    that refuse it.
    """

    url: str
    model: str
    endpoint: Endpoint = "completions"
    api_key: str | None = None
    extra: Mapping[str, object] = field(default_factory=dict)
    timeout_s: float = 300.0  # of a whole request, from when it was sent
    ca_file: str | None = None  # whom to trust of an https server; None: as the client library does

    @property
    def base_path(self) -> str:
        """Of the URL, without the `/v1` that other tools want at its end."""
        return urlsplit(self.url).path.rstrip("/").removesuffix("/v1")

    @property
    def address(self) -> tuple[str, int]:
        """Host and port. Raises: ConfigError."""
        parts = urlsplit(self.url)
        try:
            port = parts.port
        except ValueError as error:
            raise ConfigError(f"--url {self.url!r}: {error}") from error
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ConfigError(f"--url {self.url!r} is not the URL of a server; give http://HOST:PORT")
        return parts.hostname, port or (443 if parts.scheme == "https" else 80)

    @property
    def tls(self) -> ssl.SSLContext | None:
        """None for plain HTTP. Raises: ConfigError."""
        return trust_of(self.url, self.ca_file)

    def request(self, prompt: Prompt, max_tokens: int, sampling: Mapping[str, object]) -> bytes:
        """Head and body of one streamed request."""
        fields: dict[str, object] = {
            "model": self.model,
            **prompt.fields,
            "max_tokens": max_tokens,
            **sampling,
            "stream": True,
            "stream_options": {"include_usage": True},
            **self.extra,
        }
        body = msgspec.json.encode({name: value for name, value in fields.items() if value is not None})
        host = urlsplit(self.url).netloc.rpartition("@")[2]
        key = f"Authorization: Bearer {self.api_key}\r\n" if self.api_key else ""
        head = (
            f"POST {self.base_path}{PATHS[self.endpoint]} HTTP/1.1\r\nHost: {host}\r\n{key}"
            "Content-Type: application/json\r\nAccept: text/event-stream\r\n"
            f"Content-Length: {len(body)}\r\n\r\n"
        )
        return head.encode("latin-1") + body
