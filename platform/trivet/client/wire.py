"""How calls look on the wire, and what comes back: the part that both kinds of connection share."""

from __future__ import annotations

import ssl
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any, TypeVar

import httpx2
import msgspec

from trivet.client.calls import Call, JsonObject, StreamCall
from trivet.client.failures import ErrorEvent, failure, failure_of
from trivet.errors import ConfigError, TrivetError, Unavailable

T = TypeVar("T")
CONNECT_TIMEOUT_S = 5.0
KEEPALIVE_S = 5.0
LOOPBACK = ("127.0.0.1", "localhost", "::1")
NOT_CONNECTED = (httpx2.ConnectError, httpx2.ConnectTimeout)  # the server has seen nothing of the request


def host_of(base_url: str) -> str:
    """The host that a server's URL names. Raises: ConfigError where it is none."""
    return _parsed(base_url).host


def port_of(base_url: str) -> int:
    """The port that a server's URL names or its scheme stands for. Raises: ConfigError where it is none."""
    url = _parsed(base_url)
    return url.port or {"http": 80, "https": 443}[url.scheme]


def _parsed(base_url: str) -> httpx2.URL:
    try:
        url = httpx2.URL(base_url)
    except httpx2.InvalidURL as error:
        raise ConfigError(f"{base_url!r} is not a URL ({error}); give http://HOST:PORT") from error
    if url.scheme not in ("http", "https") or not url.host:
        raise ConfigError(f"{base_url!r} is not the URL of a server; give http://HOST:PORT")
    return url


def is_loopback(base_url: str) -> bool:
    """Whether the URL names this host and nobody in between. Raises: ConfigError."""
    return host_of(base_url) in LOOPBACK


def is_tls(base_url: str) -> bool:
    """However its scheme is written. Raises: ConfigError."""
    return _parsed(base_url).scheme == "https"


def pool_options(
    base_url: str, api_key: str | None, max_connections: int, trust: ssl.SSLContext | None
) -> dict[str, Any]:
    """What httpx's clients of both kinds are made with. Without TLS no authorities are read, for 50 ms."""
    return {
        "verify": trust or is_tls(base_url),
        "base_url": base_url.rstrip("/"),
        "headers": {"Authorization": f"Bearer {api_key}"} if api_key else {},
        "limits": httpx2.Limits(
            max_connections=max_connections,
            max_keepalive_connections=max_connections,
            keepalive_expiry=KEEPALIVE_S,
        ),
        "trust_env": not is_loopback(base_url),  # a proxy of the environment is not for this host
    }


@dataclass(frozen=True, slots=True)
class Wire:
    """Of one server."""

    base_url: str
    timeout_s: float  # the longest silence; a stream of ours has a sign of life each 15 s

    @contextmanager
    def request(
        self, http: httpx2.Client | httpx2.AsyncClient, call: Call[T] | StreamCall[T]
    ) -> Iterator[httpx2.Request]:
        """A fresh one for each attempt, with its file open. Raises: OSError."""
        upload = call.upload if isinstance(call, Call) else None
        is_endless = isinstance(call, StreamCall) and call.is_endless
        timeout = httpx2.Timeout(None if is_endless else self.timeout_s, connect=CONNECT_TIMEOUT_S)
        content: dict[str, Any] = {}
        if call.body is not None:
            content = {
                "content": msgspec.json.encode(call.body),
                "headers": {"Content-Type": "application/json"},
            }
        with ExitStack() as stack:
            if upload is not None:
                file = stack.enter_context(upload.opened())
                content = {"data": dict(upload.fields), "files": {"file": (upload.filename, file)}}
            yield http.build_request(
                call.method, call.path, params=_present(call.query), timeout=timeout, **content
            )

    def refusal(self, response: httpx2.Response, body: bytes) -> TrivetError:
        """The error that an answer is."""
        error = failure_of(response.status_code, body, response.headers)
        if request_id := response.headers.get("x-request-id"):
            error.add_note(f"request id {request_id}")
        return error

    def answer(self, call: Call[T], response: httpx2.Response) -> T:
        """Of a whole answer that has been read. Raises: TrivetError where it is another server's."""
        value: Any = response.content
        if call.answer is str:
            value = response.text
        elif call.answer is not bytes:
            value = self.decode(response.content, call.answer)
        return value if call.read is None else call.read(value)

    def event(self, call: StreamCall[T], event: httpx2.ServerSentEvent) -> T:
        """Raises: what an error event names."""
        if event.event == "error" or event.data.startswith('{"error"'):
            told: ErrorEvent = self.decode(event.data, ErrorEvent)
            raise failure(told.error or told)
        return self.decode(event.data, call.item)  # type: ignore[no-any-return]

    def check_length(self, call: StreamCall[T], response: httpx2.Response) -> None:
        """Of a body that has been read in pieces. Raises: Unavailable where its end is missing."""
        told, num_read = response.headers.get("content-length"), response.num_bytes_downloaded
        if told is not None and told.isdecimal() and int(told) != num_read:
            raise Unavailable(
                f"{self.base_url}{call.path} has {told} bytes and {num_read} of them came; ask again"
            )

    def cut(self, call: StreamCall[T]) -> Unavailable:
        """The connection ended in order, the answer did not."""
        end = "its last event" if call.is_last else "[DONE]"
        return Unavailable(
            f"the stream from {self.base_url}{call.path} ended before {end}: the answer is not complete; "
            "send the request again"
        )

    def decode(self, data: bytes | str, kind: Any) -> Any:
        """Raises: TrivetError."""
        try:
            return msgspec.json.decode(data or b"null", type=kind)
        except msgspec.MsgspecError as error:
            raise TrivetError(
                f"{self.base_url} answered something that is no {getattr(kind, '__name__', kind)}: {error}; "
                "is it a Trivet server of this version?"
            ) from error

    @contextmanager
    def failures(self) -> Iterator[None]:
        """What goes wrong between here and the server, as `Unavailable`."""
        try:
            yield
        except NOT_CONNECTED as error:
            raise self.no_connection(error) from error
        except httpx2.PoolTimeout as error:
            raise Unavailable(
                f"every connection to {self.base_url} is in use by a request of this client; close streams, "
                "or raise max_connections"
            ) from error
        except httpx2.TimeoutException as error:
            raise Unavailable(
                f"{self.base_url} accepted the request and sent nothing in time ({type(error).__name__}); "
                "see `trivet ps` and the server's log"
            ) from error
        except httpx2.SSEError as error:
            raise TrivetError(
                f"{self.base_url} answered no stream: {error}; is it a Trivet server?"
            ) from error
        except httpx2.DecodingError as error:
            raise Unavailable(
                f"the answer of {self.base_url} is not in the encoding that it names ({error}); is there a "
                "proxy in between?"
            ) from error
        except httpx2.RequestError as error:
            raise Unavailable(
                f"the connection to {self.base_url} broke: {str(error) or type(error).__name__}"
            ) from error

    def no_connection(self, error: Exception) -> Unavailable:
        """Nothing listens, nothing can be reached, or it cannot be trusted."""
        if "CERTIFICATE_VERIFY_FAILED" in str(error):
            return Unavailable(
                f"the certificate of {self.base_url} is not trusted ({error}); give the certificate of who "
                "signed it: ca_file, --ca-file or TRIVET_TLS_CA"
            )
        if "[SSL" in str(error):
            return Unavailable(
                f"{self.base_url} does not answer in TLS ({error}); if it has none, ask for http://"
            )
        return Unavailable(
            f"no server answers at {self.base_url} ({str(error) or 'timed out'}); "
            "start one with `trivet serve`, or name another with --url"
        )


def _present(query: JsonObject) -> dict[str, str]:
    return {key: str(value) for key, value in query.items() if value is not None}
