"""The server of this home (`TRIVET_HOME`): where it is and what its token is."""

from __future__ import annotations

import ssl
from collections.abc import Generator

import httpx2

from trivet.access import is_served, local_url
from trivet.client.wire import is_loopback, is_tls, port_of
from trivet.config import Settings, load_settings
from trivet.errors import ConfigError
from trivet.tls import trust


class TokenOfHome(httpx2.Auth):
    """The token of this home as it is at each request: every start of `trivet serve` makes another.

    It is sent while this home is served. Without that, any account of the host may listen where the server
    would, and would be told what may all.
    """

    def __init__(self, settings: Settings) -> None:
        self._settings = settings

    def auth_flow(self, request: httpx2.Request) -> Generator[httpx2.Request, httpx2.Response, None]:
        """Raises: ConfigError where it may not be read."""
        if token := self.read():
            request.headers["Authorization"] = f"Bearer {token}"
        yield request

    def read(self) -> str | None:
        """None while nobody serves this home."""
        return _token_of_home(self._settings) if is_served(self._settings.paths) else None


def found(base_url: str | None, api_key: str | None) -> tuple[str, str | None, TokenOfHome | None]:
    """URL, key and token of the server that a client was made for; None stands for what this home has.

    The token of this home goes to its own server only: any account of the host may listen at another port.

    Raises: ConfigError.
    """
    settings = load_settings()
    url = base_url or _url_of_home(settings)
    if api_key is None and (base_url is None or _is_of_home(url, settings)):
        token = TokenOfHome(settings)
        token.read()  # what it cannot be read for is told at once
        return url, None, token
    return url, api_key, None


def _is_of_home(url: str, settings: Settings) -> bool:
    """Whether it is where this home's server listens, perhaps by another name of this host."""
    own = _url_of_home(settings)
    if not is_loopback(url):
        return url.rstrip("/") == own
    return is_loopback(own) and port_of(url) == port_of(own)


def trust_of(url: str, ca_file: str | None) -> ssl.SSLContext | None:
    """Whom a client of that server trusts; None without TLS. A server on this host shows its own certificate.

    Raises: ConfigError.
    """
    if not is_tls(url):
        return None
    settings = load_settings()
    own = _own_cert(settings) if ca_file is None and is_loopback(url) else None
    return trust(ca_file or settings.tls_ca, own)


def _own_cert(settings: Settings) -> str | None:
    try:
        return settings.paths.cert_file.read_text().strip() or settings.tls_cert
    except OSError:
        return settings.tls_cert


def _url_of_home(settings: Settings) -> str:
    """The running server's own word; it may have been started on another port than the settings name.

    Raises: ConfigError where it is no address.
    """
    file = settings.paths.url_file
    try:
        text = file.read_text(errors="replace").strip()
    except OSError:
        return local_url(settings)
    if text and not text.startswith(("http://", "https://")):
        raise ConfigError(
            f"{file} holds {text[:80]!r}, which is no address of a server; remove it, or start "
            "`trivet serve` anew, which writes it"
        )
    return text or local_url(settings)


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
