"""The server of this home (`TRIVET_HOME`): where it is and what its token is."""

from __future__ import annotations

import ssl

from trivet.client.wire import is_loopback
from trivet.config import Settings, load_settings
from trivet.errors import ConfigError
from trivet.tls import trust


def found(base_url: str | None, api_key: str | None) -> tuple[str, str | None]:
    """URL and key of the server that a client was made for; None stands for what this home has.

    The token of this home goes to its own server, and to others on this host only. Raises: ConfigError.
    """
    url = base_url or _url_of_home(load_settings())
    if api_key is None and (base_url is None or is_loopback(url)):
        api_key = _token_of_home(load_settings())
    return url, api_key


def local_url(settings: Settings) -> str:
    """Where the server of this home listens, as seen from this host."""
    host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(settings.host, settings.host)
    scheme = "http" if settings.tls_cert is None else "https"
    return f"{scheme}://{f'[{host}]' if ':' in host else host}:{settings.port}"


def trust_of(url: str, ca_file: str | None) -> ssl.SSLContext | None:
    """Whom a client of that server trusts; None without TLS. A server on this host shows its own certificate.

    Raises: ConfigError.
    """
    if not url.startswith("https:"):
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
