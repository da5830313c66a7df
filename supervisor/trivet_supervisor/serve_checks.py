"""What must hold before `trivet serve` starts anything: a safe address, a free port, one serve a home."""

from __future__ import annotations

import fcntl
import ipaddress
import os
import secrets
import socket
from collections.abc import Iterator
from contextlib import contextmanager

import msgspec

from trivet.config import Paths, Settings
from trivet.errors import ConfigError, Conflict


def is_loopback(host: str) -> bool:
    """Whether only this host reaches the address."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


def check_address(settings: Settings) -> None:
    """Raises: ConfigError where the address would offer this server to others without protection."""
    if is_loopback(settings.host) or settings.insecure:
        return
    raise ConfigError(
        f"host {settings.host} is reached from other hosts, and this server has neither TLS nor users yet: "
        "requests and the management token would cross the network in the clear; bind 127.0.0.1 behind a "
        "proxy with TLS, or accept that with --insecure"
    )


def with_free_port(settings: Settings) -> Settings:
    """Port 0 becomes a free one. Raises: ConfigError where the port is taken."""
    family = socket.AF_INET6 if ":" in settings.host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # as gunicorn: TIME_WAIT is no taker
        try:
            probe.bind((settings.host.strip("[]"), settings.port))
        except OSError as error:
            raise ConfigError(
                f"port {settings.port} on {settings.host} cannot be used: {error.strerror}; "
                "choose another with --port"
            ) from error
        return msgspec.structs.replace(settings, port=probe.getsockname()[1])


@contextmanager
def serve_lock(paths: Paths) -> Iterator[None]:
    """Held by the one serve of a home; it dies with its process.

    Raises: Conflict naming the first.
    """
    with open(os.open(paths.lock_file, os.O_RDWR | os.O_CREAT, 0o600), "r+") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = file.read().strip() or "unknown"
            raise Conflict(
                f"`trivet serve` runs already on {paths.home}, with pid {holder}; use that one, or end it: "
                f"kill {holder}"
            ) from None
        file.truncate()
        file.write(str(os.getpid()))
        file.flush()
        yield


def management_token(paths: Paths) -> str:
    """The token of this home, made once: 256 random bits in a file of mode 0600."""
    try:
        with open(os.open(paths.token_file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
            file.write(secrets.token_urlsafe(32) + "\n")
    except FileExistsError:
        pass
    return paths.token_file.read_text().strip()
