"""`Client`: one server, everything it offers."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Self
from urllib.parse import quote

from trivet.client.connection import Connection, is_loopback
from trivet.client.inference import Chat, Completions
from trivet.client.management import ROOT, Deployments, Instances, Listing, Models
from trivet.client.results import Device, Event, History, Plan, Status
from trivet.config import Settings, load_settings
from trivet.errors import ConfigError


class Client:
    """A connection to a Trivet server; thread-safe, and a context manager that closes it.

    Without arguments it is the server of this home (`TRIVET_HOME`): the address that it left in its run
    directory, else host and port of the settings, and the token of its run directory. To a server given by
    `base_url` that token goes on this host only.
    """

    def __init__(
        self,
        base_url: str | None = None,
        api_key: str | None = None,
        *,
        timeout_s: float = 300.0,
        max_connections: int = 100,
    ) -> None:
        url = base_url or _url_of_home(load_settings())
        if api_key is None and (base_url is None or is_loopback(url)):
            api_key = _token_of_home(load_settings())
        self.api_key = api_key  # what it sends; None: nothing
        self._connection = Connection(url, api_key, timeout_s, max_connections)
        self.chat = Chat(self._connection)
        self.completions = Completions(self._connection)
        self.models = Models(self._connection)
        self.deployments = Deployments(self._connection)
        self.instances = Instances(self._connection)

    @property
    def base_url(self) -> str:
        return self._connection.base_url

    def health(self, *, ready: bool = False) -> bool:
        """Whether the server answers; `ready`: whether something can serve a request. Raises nothing."""
        return self._connection.answers("/health/ready" if ready else "/health")

    def status(self) -> Status:
        return self._connection.request("GET", f"{ROOT}/status", Status)

    def devices(self) -> tuple[Device, ...]:
        return self._connection.request("GET", f"{ROOT}/devices", Listing[Device]).data

    def events(self, deployment: str | None = None, limit: int = 100) -> tuple[Event, ...]:
        query = {"deployment": deployment, "limit": limit}
        return self._connection.request("GET", f"{ROOT}/events", Listing[Event], query=query).data

    def logs(
        self, instance: str, *, follow: bool = False, attempt: int | str | None = None, tail: int = 200
    ) -> Iterator[str]:
        """The engine's log in pieces of text; `follow` goes on until the iterator is closed.

        Args:
            attempt: a number, "first-crash", or None for the newest.
        """
        query = {"attempt": attempt, "tail": tail, "follow": int(follow)}
        return self._connection.text(f"{ROOT}/logs/{quote(instance, safe='')}", query, endless=follow)

    def history(
        self, window_s: int = 900, *, names: Iterable[str] = (), deployment: str | None = None
    ) -> History:
        """Figures of the last `window_s` seconds; `names` are those of `/metrics` without the prefix."""
        query = {"window_s": window_s, "names": ",".join(names) or None, "deployment": deployment}
        return self._connection.request("GET", f"{ROOT}/history", History, query=query)

    def plan(
        self,
        model: str,
        *,
        backend: str = "auto",
        device: str | None = None,
        settings: Mapping[str, str] | None = None,
    ) -> Plan:
        """What a launch would take, on the server's host. `fits` false carries the reason."""
        body = {"model": model, "backend": backend, "device": device, "settings": dict(settings or {})}
        return self._connection.request("POST", f"{ROOT}/plan", Plan, body=body)

    def close(self) -> None:
        self._connection.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


def local_url(settings: Settings) -> str:
    """Where the server of this home listens, as seen from this host."""
    host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(settings.host, settings.host)
    return f"http://{f'[{host}]' if ':' in host else host}:{settings.port}"


def _url_of_home(settings: Settings) -> str:
    """The running server's own word; it may have been started on another port than the settings name."""
    try:
        return settings.paths.url_file.read_text().strip() or local_url(settings)
    except OSError:
        return local_url(settings)


def _token_of_home(settings: Settings) -> str | None:
    """None where there is no token (no server yet); the server then says what it wants.

    Raises: ConfigError where it may not be read.
    """
    file = settings.paths.token_file
    try:
        return file.read_text().strip() or None
    except FileNotFoundError:
        return None
    except OSError as error:
        raise ConfigError(
            f"the management token {file} cannot be read ({error.strerror}); "
            "use the account that started the server, or give an API key"
        ) from error
