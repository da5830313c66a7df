"""One HTTP connection pool to one server: requests, event streams, and failures as `trivet.errors`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, TypeVar

import httpx2
import msgspec

from trivet.client.failures import ErrorBody, failure, failure_of
from trivet.errors import ConfigError, TrivetError, Unavailable

T = TypeVar("T")
CONNECT_TIMEOUT_S = 5.0
LOOPBACK = ("127.0.0.1", "localhost", "::1")


def host_of(base_url: str) -> str:
    """The host that a server's URL names. Raises: ConfigError where it is none."""
    try:
        url = httpx2.URL(base_url)
    except httpx2.InvalidURL as error:
        raise ConfigError(f"{base_url!r} is not a URL ({error}); give http://HOST:PORT") from error
    if url.scheme not in ("http", "https") or not url.host:
        raise ConfigError(f"{base_url!r} is not the URL of a server; give http://HOST:PORT")
    return url.host


def is_loopback(base_url: str) -> bool:
    """Whether the URL names this host and nobody in between. Raises: ConfigError."""
    return host_of(base_url) in LOOPBACK


class Connection:
    """Thread-safe; one per `Client`."""

    def __init__(self, base_url: str, api_key: str | None, timeout_s: float, max_connections: int) -> None:
        self.base_url = base_url.rstrip("/")
        headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}
        limits = httpx2.Limits(
            max_connections=max_connections, max_keepalive_connections=max_connections, keepalive_expiry=5.0
        )
        self._http = httpx2.Client(
            base_url=self.base_url,
            headers=headers,
            timeout=httpx2.Timeout(timeout_s, connect=CONNECT_TIMEOUT_S),
            limits=limits,
            trust_env=not is_loopback(self.base_url),  # a proxy of the environment is not for this host
        )

    def request(
        self,
        method: str,
        path: str,
        answer: type[T],
        *,
        body: object | None = None,
        query: Mapping[str, object] | None = None,
    ) -> T:
        """Send `body` as JSON and decode the answer. `query` entries that are None are left out.

        Raises: TrivetError as the server named it; Unavailable where nothing answers.
        """
        with self._failures():
            response = self._http.request(method, path, params=_present(query), **_json(body))
        if response.is_error:
            raise failure_of(response.status_code, response.content, response.headers)
        return self._decode(response.content, answer)

    def events(self, path: str, answer: type[T], body: object) -> Iterator[T]:
        """POST and yield the decoded events of an SSE answer until `[DONE]`.

        Closing the generator closes the connection, which aborts the request in the engine.

        Raises: what an error event names; Unavailable where the stream ends before `[DONE]`.
        """
        with self._failures(), self._http.stream("POST", path, **_json(body)) as response:
            if response.is_error:
                raise failure_of(response.status_code, response.read(), response.headers)
            for event in httpx2.EventSource(response):
                if event.data == "[DONE]":
                    return
                if event.event == "error" or event.data.startswith('{"error"'):
                    raise failure(self._decode(event.data, ErrorBody).error)
                yield self._decode(event.data, answer)
        raise Unavailable(
            f"the stream from {self.base_url}{path} ended before [DONE]: the answer is not complete; "
            "send the request again"
        )

    def text(self, path: str, query: Mapping[str, object], *, endless: bool = False) -> Iterator[str]:
        """GET a text/plain answer in pieces; `endless` waits between pieces for as long as it takes."""
        timeout = httpx2.Timeout(None, connect=CONNECT_TIMEOUT_S) if endless else httpx2.USE_CLIENT_DEFAULT
        with (
            self._failures(),
            self._http.stream("GET", path, params=_present(query), timeout=timeout) as response,
        ):
            if response.is_error:
                raise failure_of(response.status_code, response.read(), response.headers)
            yield from response.iter_text()

    def answers(self, path: str) -> bool:
        """Whether GET `path` succeeds; False where nothing listens. Raises nothing."""
        try:
            return self._http.get(path).is_success
        except httpx2.TransportError:
            return False

    def close(self) -> None:
        self._http.close()

    def _decode(self, data: bytes | str, answer: type[T]) -> T:
        try:
            return msgspec.json.decode(data or b"null", type=answer)
        except msgspec.MsgspecError as error:
            raise TrivetError(
                f"{self.base_url} answered something that is no {answer.__name__}: {error}; "
                "is it a Trivet server of this version?"
            ) from error

    @contextmanager
    def _failures(self) -> Iterator[None]:
        try:
            yield
        except (httpx2.ConnectError, httpx2.ConnectTimeout) as error:
            raise Unavailable(
                f"no server answers at {self.base_url} ({str(error) or 'timed out'}); "
                "start one with `trivet serve`, or name another with --url"
            ) from error
        except httpx2.TimeoutException as error:
            raise Unavailable(
                f"{self.base_url} accepted the request and sent nothing in time ({type(error).__name__}); "
                "see `trivet ps` and the server's log"
            ) from error
        except httpx2.TransportError as error:
            raise Unavailable(
                f"the connection to {self.base_url} broke: {str(error) or type(error).__name__}"
            ) from error


def _present(query: Mapping[str, object] | None) -> dict[str, str]:
    return {key: str(value) for key, value in (query or {}).items() if value is not None}


def _json(body: object | None) -> dict[str, Any]:
    if body is None:
        return {}
    return {"content": msgspec.json.encode(body), "headers": {"Content-Type": "application/json"}}
