"""An HTTP client for addresses that users name: it goes to public hosts only, whatever their names say.

A name is resolved once, all its addresses are looked at, and the connection goes to the one that was looked
at: a name that answers differently a second later (DNS rebinding) gains nothing. Each redirect is a request
of its own and is looked at alike. Certificates are checked against the name.

Through the site's proxy (`source_proxy`) go requests to public hosts, by name: proxies decide by names, and
resolve them again. A name that is private here is refused all the same, and one that only the proxy can
resolve is left to its rules. Private addresses that the site allows are reached directly.
"""

from __future__ import annotations

import ipaddress
import socket
from collections.abc import Callable, Iterable

import httpx2

from trivet.errors import PermissionDenied, Unavailable
from trivet_registry.sources.watched_network import Check, WatchedTransport

CONNECT_TIMEOUT_S = 20.0
READ_TIMEOUT_S = 60.0  # the longest silence
MAX_REDIRECTS = 5
_GLOBAL_UNICAST = ipaddress.IPv6Network("2000::/3")  # all that IANA gives to hosts
Resolve = Callable[[str, int], Iterable[str]]  # host and port to addresses


def resolve(host: str, port: int) -> list[str]:
    """By the system. Raises: OSError."""
    found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return list(dict.fromkeys(str(address[0]) for *_, address in found))


class GuardedTransport(httpx2.BaseTransport):
    """Pins addresses and refuses those that are not public.

    Args:
        inner: makes what connects to addresses that were looked at. Each name has its own, for two names at
            one address would share its connections, and the second one's certificate would never be seen.
        trusted: "host:port" of addresses that the site's own settings name; these may be private, and http.
        allows_private: the site allows private addresses, and http, for all.
        proxied: reaches public hosts by their names; None: they are reached by their addresses.
    """

    def __init__(
        self,
        inner: Callable[[], httpx2.BaseTransport],
        trusted: frozenset[str] = frozenset(),
        *,
        allows_private: bool = False,
        resolves: Resolve = resolve,
        proxied: httpx2.BaseTransport | None = None,
    ) -> None:
        self._make = inner
        self._by_name: dict[str, httpx2.BaseTransport] = {}
        self._trusted = trusted
        self._allows_private = allows_private
        self._resolve = resolves
        self._proxied = proxied

    def handle_request(self, request: httpx2.Request) -> httpx2.Response:
        url = request.url
        port = url.port or (443 if url.scheme == "https" else 80)
        is_trusted = self._allows_private or f"{url.host}:{port}" in self._trusted
        if url.scheme != "https" and not is_trusted:
            raise PermissionDenied(f"{_shown(url)} is not https; set private_sources to allow it")
        address = self._address(url.host, port, is_trusted)
        if self._proxied is not None and (address is None or _is_public(address)):
            return self._proxied.handle_request(request)
        request.url = url.copy_with(host=address)  # the Host header was made of the name
        request.extensions = {**request.extensions, "sni_hostname": url.host}
        inner = self._by_name.get(url.host) or self._by_name.setdefault(url.host, self._make())
        try:
            return inner.handle_request(request)
        finally:
            request.url = url  # redirects are relative to it

    def _address(self, host: str, port: int, is_trusted: bool) -> str | None:
        """None: only the proxy may know."""
        try:
            addresses = list(self._resolve(host, port))
        except OSError as error:
            if self._proxied is not None:
                return None
            raise Unavailable(f"host {host!r} cannot be found: {error.strerror or error}") from error
        for address in addresses:
            if not is_trusted and not _is_public(address):
                raise PermissionDenied(
                    f"host {host!r} is at {address}, which is not public; only addresses of the site's own "
                    "settings may be private: set hf_endpoint or ms_endpoint, or private_sources"
                )
        if not addresses:
            raise Unavailable(f"host {host!r} has no address")
        return addresses[0]

    def close(self) -> None:
        for inner in self._by_name.values():
            inner.close()
        if self._proxied is not None:
            self._proxied.close()


def guarded_client(
    trusted: Iterable[str] = (),
    *,
    allows_private: bool = False,
    resolves: Resolve = resolve,
    proxy: str = "",
    check: Check = lambda: None,
) -> httpx2.Client:
    """Args: trusted: URLs of the site's settings. proxy: the site's. check: see `watched_network`."""
    hosts = frozenset(_place_of(httpx2.URL(url)) for url in trusted)
    return httpx2.Client(
        transport=GuardedTransport(
            lambda: WatchedTransport(check),
            hosts,
            allows_private=allows_private,
            resolves=resolves,
            proxied=WatchedTransport(check, proxy) if proxy else None,
        ),
        timeout=httpx2.Timeout(READ_TIMEOUT_S, connect=CONNECT_TIMEOUT_S),
        follow_redirects=True,
        max_redirects=MAX_REDIRECTS,
        headers={"user-agent": "trivet"},
    )


def _is_public(address: str) -> bool:
    """Neither loopback, private, link-local (metadata services), shared, multicast nor reserved."""
    found = ipaddress.ip_address(address.partition("%")[0])
    mapped = found.ipv4_mapped if isinstance(found, ipaddress.IPv6Address) else None
    found = mapped or found
    if isinstance(found, ipaddress.IPv6Address) and (
        found not in _GLOBAL_UNICAST or found.sixtofour or found.teredo
    ):
        return False  # a private address may be inside, as in those of NAT64
    return found.is_global and not found.is_multicast


def _place_of(url: httpx2.URL) -> str:
    return f"{url.host}:{url.port or (443 if url.scheme == 'https' else 80)}"


def _shown(url: httpx2.URL) -> str:
    return f"{url.scheme}://{url.host}"
