"""`Client` and `AsyncClient`: one server, everything it offers."""

from __future__ import annotations

from typing import Any, NamedTuple, Self

import httpx2

from trivet.client.accounts import Audit, Keys, Sessions, Usage, Users
from trivet.client.async_connection import AsyncConnection
from trivet.client.calls import C
from trivet.client.connection import Connection
from trivet.client.home import TokenOfHome, found, trust_of
from trivet.client.inference import Chat, Completions
from trivet.client.management import Deployments, Instances, Operation
from trivet.client.model_sources import ModelStore, Pulls
from trivet.client.registry import Aliases, Models
from trivet.client.retries import Retries
from trivet.client.stored import Batches, Files, Responses
from trivet.client.wire import Wire, pool_options

__all__ = ["AsyncClient", "Client"]
TIMEOUT_S = 300.0
MAX_RETRIES = 2
MAX_CONNECTIONS = 100


class Access(NamedTuple):
    """What a client of either kind is made of, from what its caller gave."""

    api_key: str | None
    token: TokenOfHome | None
    wire: Wire
    retries: Retries
    pool: dict[str, Any]  # for httpx's client

    @classmethod
    def of(
        cls,
        base_url: str | None,
        api_key: str | None,
        timeout_s: float,
        max_retries: int,
        max_connections: int,
        ca_file: str | None,
    ) -> Access:
        """Raises: ConfigError."""
        url, key, token = found(base_url, api_key)
        pool = {"auth": token, **pool_options(url, key, max_connections, trust_of(url, ca_file))}
        return cls(key, token, Wire(url.rstrip("/"), timeout_s), Retries(max_retries, timeout_s), pool)


class Server(Operation[C]):
    """The calls of both clients; each is written once (`calls.py`)."""

    def __init__(self, connection: C, access: Access) -> None:
        super().__init__(connection)
        self._access = access
        self.chat = Chat(connection)
        self.completions = Completions(connection)
        self.responses = Responses(connection)
        self.files = Files(connection)
        self.batches = Batches(connection)
        self.models = Models(connection)
        self.aliases = Aliases(connection)
        self.pulls = Pulls(connection)
        self.store = ModelStore(connection)
        self.deployments = Deployments(connection)
        self.instances = Instances(connection)
        self.users = Users(connection)
        self.sessions = Sessions(connection)
        self.keys = Keys(connection)
        self.audit = Audit(connection)
        self.usage = Usage(connection)

    @property
    def api_key(self) -> str | None:
        """What it sends now; None: nothing."""
        return self._access.api_key if self._access.token is None else self._access.token.read()

    @property
    def base_url(self) -> str:
        return self._connection.wire.base_url

    def with_options(self, *, timeout_s: float | None = None, max_retries: int | None = None) -> Self:
        """The same server and connections, which stay this client's to close."""
        copy = object.__new__(type(self))
        connection = self._connection.with_options(timeout_s, max_retries)
        Server.__init__(copy, connection, self._access)  # type: ignore[misc]  # C is known by the class
        return copy


class Client(Server[Connection]):
    """A connection to a Trivet server; thread-safe, and a context manager that closes it.

    Without arguments it is the server of this home (`TRIVET_HOME`): the address that it left in its run
    directory, else host and port of the settings, and the token of its run directory. To a server given by
    `base_url` that token goes where it is this home's own.

    Every failure is a `trivet.errors.TrivetError`: what the server named, or `Unavailable` where there is no
    server, no answer in time, or half an answer.

    >>> from trivet.errors import ModelNotFound, Overloaded, TrivetError
    >>> try:
    ...     client.completions.complete("no-such-model", "Hello")
    ... except ModelNotFound as error:
    ...     print(error.status, error.code, error.param)
    404 model_not_found model
    >>> patient = client.with_options(timeout_s=600, max_retries=10)  # over the same connections
    >>> patient.health(ready=True)
    True
    """

    def __init__(
        self,
        base_url: str | None = None,
        api_key: str | None = None,
        *,
        timeout_s: float = TIMEOUT_S,
        max_retries: int = MAX_RETRIES,
        max_connections: int = MAX_CONNECTIONS,
        ca_file: str | None = None,
        transport: httpx2.BaseTransport | None = None,
    ) -> None:
        """Args:

        timeout_s: the longest silence of the server, and the longest wait that it may ask for.
        max_retries: of a request that the server has certainly not begun with (`retries.py`).
        ca_file: certificates (PEM) to trust of an https server, instead of the system's. The server of this
            home is known by its own certificate.
        transport: instead of connections, such as to an application in this process.
        """
        access = Access.of(base_url, api_key, timeout_s, max_retries, max_connections, ca_file)
        http = httpx2.Client(transport=transport, **access.pool)
        super().__init__(Connection(http, access.wire, access.retries), access)

    def health(self, *, ready: bool = False) -> bool:
        """Whether the server answers; `ready`: whether something can serve a request. Raises nothing."""
        return self._connection.answers("/health/ready" if ready else "/health")

    def close(self) -> None:
        """End all connections."""
        self._connection.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


class AsyncClient(Server[AsyncConnection]):
    """As `Client`, for asyncio: calls are awaited, streams iterated with `async for`.

    >>> import asyncio
    >>> async def main():
    ...     async with AsyncClient(client.base_url, client.api_key) as server:
    ...         prompts = ["One", "Two", "Three"]
    ...         calls = [server.completions.complete("null", p, max_tokens=4) for p in prompts]
    ...         answers = await asyncio.gather(*calls)
    ...         async with server.completions.stream("null", "Four", max_tokens=4) as chunks:
    ...             text = "".join([chunk.text async for chunk in chunks])
    ...         return [answer.usage.completion_tokens for answer in answers]
    >>> asyncio.run(main())
    [4, 4, 4]
    """

    def __init__(
        self,
        base_url: str | None = None,
        api_key: str | None = None,
        *,
        timeout_s: float = TIMEOUT_S,
        max_retries: int = MAX_RETRIES,
        max_connections: int = MAX_CONNECTIONS,
        ca_file: str | None = None,
        transport: httpx2.AsyncBaseTransport | None = None,
    ) -> None:
        """As `Client`'s."""
        access = Access.of(base_url, api_key, timeout_s, max_retries, max_connections, ca_file)
        http = httpx2.AsyncClient(transport=transport, **access.pool)
        super().__init__(AsyncConnection(http, access.wire, access.retries), access)

    async def health(self, *, ready: bool = False) -> bool:
        """Whether the server answers; `ready`: whether something can serve a request. Raises nothing."""
        return await self._connection.answers("/health/ready" if ready else "/health")

    async def close(self) -> None:
        """End all connections."""
        await self._connection.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.close()
