"""Who may reach a site: which addresses may be listened on, and the management token."""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import ipaddress
import os
import secrets
import socket
import tempfile
from pathlib import Path

import msgspec

from trivet.config import Paths, Settings
from trivet.errors import ConfigError
from trivet.tls import server_context

AUTH_CHOICES = ("auto", "required", "off")


def is_loopback(host: str) -> bool:
    """Whether a name or an address reaches this host only."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


def local_url(settings: Settings) -> str:
    """Where the server of this home listens, as seen from this host."""
    host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(settings.host, settings.host)
    scheme = "http" if settings.tls_cert is None else "https"
    return f"{scheme}://{f'[{host}]' if ':' in host else host}:{settings.port}"


def urls_for_others(settings: Settings) -> list[str]:
    """Where other machines may find a server that listens on all addresses of this one; else empty."""
    families = {"0.0.0.0": (socket.AF_INET,), "::": (socket.AF_INET, socket.AF_INET6)}.get(settings.host, ())
    if not families:
        return []
    import psutil  # not for every command

    found = (ad.address for each in psutil.net_if_addrs().values() for ad in each if ad.family in families)
    addresses = [address for address in found if not _is_of_this_link(address)]
    return [local_url(msgspec.structs.replace(settings, host=address)) for address in addresses]


def _is_of_this_link(address: str) -> bool:
    """Or of this host alone."""
    parsed = ipaddress.ip_address(address.partition("%")[0])
    return parsed.is_loopback or parsed.is_link_local


def check_bind(settings: Settings) -> None:
    """Raises: ConfigError where the address would offer this server to others without protection.

    TLS that cannot be used is an error, too.
    """
    server_context(settings)
    if settings.auth not in AUTH_CHOICES:
        raise ConfigError(f"auth is {settings.auth!r}; it must be one of {', '.join(AUTH_CHOICES)}")
    if is_loopback(settings.host):
        return
    if settings.auth == "off":
        raise ConfigError(
            f"host {settings.host} is reached from other hosts and auth is off; set auth to auto"
        )
    if not settings.insecure and settings.tls_cert is None:
        raise ConfigError(
            f"host {settings.host} is reached from other hosts, and this server has no TLS and no users: "
            "requests and the management token would cross the network in the clear; give --tls-cert and "
            "--tls-key, or bind 127.0.0.1 behind a proxy with TLS and set auth to required, or accept that "
            "with --insecure"
        )


def check_users(settings: Settings, has_users: bool) -> None:
    """Raises: ConfigError where others reach this server before anybody can log in."""
    if is_loopback(settings.host) or has_users or settings.insecure:
        return
    raise ConfigError(
        f"host {settings.host} is reached from other hosts, and this site has no users; start it on "
        "loopback, open its setup link or add an admin (trivet users add NAME --role admin), and then start "
        "it here; or accept with --insecure that the token of the run directory is its only key"
    )


def management_token(file: Path) -> str:
    """The token of a home, made where there is none: 256 random bits in a file of mode 0600.

    It appears whole: processes that start at the same time read the same token.
    """
    if not file.exists():
        handle, draft = tempfile.mkstemp(dir=file.parent)  # of mode 0600
        with open(handle, "w") as new:
            new.write(secrets.token_urlsafe(32) + "\n")
        with contextlib.suppress(FileExistsError):
            os.link(draft, file)
        os.unlink(draft)
    return file.read_text().strip()


def new_management_token(file: Path) -> str:
    """Another one in its place, for a start of `serve`: what was copied from it before is worth nothing.

    Raises: ConfigError where it cannot be written; a full disk has room for one in the place of the last.
    """
    token = secrets.token_urlsafe(32)
    try:
        _write_whole(file, f"{token}\n")
    except OSError as full:
        try:
            with open(file, "r+") as last:  # of the same length
                last.write(f"{token}\n")
                last.truncate()
        except OSError:
            raise ConfigError(f"the management token {file} cannot be written: {full.strerror}") from full
    return token


def _write_whole(file: Path, text: str) -> None:
    """In the place of what is there; nothing is left of it where that fails. Raises: OSError."""
    handle, draft = tempfile.mkstemp(dir=file.parent)  # of mode 0600
    try:
        with open(handle, "w") as new:
            new.write(text)
        os.replace(draft, file)
    except OSError:
        os.unlink(draft)
        raise


def is_served(paths: Paths) -> bool:
    """Whether the `trivet serve` lives that wrote itself into the home's lock file.

    By pid and account, and not by the lock: /proc/locks may name another device than stat does.
    """
    try:
        pid, owner = int(paths.lock_file.read_text()), paths.lock_file.stat().st_uid
        return Path(f"/proc/{pid}").stat().st_uid == owner
    except (OSError, ValueError):
        return False


def setup_code(token: str) -> str:
    """What the setup link carries: it follows from the token, which does not follow from it."""
    return hmac.new(token.encode(), b"setup", hashlib.sha256).hexdigest()[:32]
