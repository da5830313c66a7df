"""What must hold before `trivet serve` starts anything: an address of ours, a free port, one serve a home."""

from __future__ import annotations

import errno
import fcntl
import os
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager

import msgspec

from trivet.config import Paths, Settings
from trivet.errors import ConfigError, Conflict
from trivet.lock_holder import write_holder

LOOK_INTERVAL_S = 0.1


def check_host(host: str) -> None:
    """Raises: ConfigError where it is no name or address of this machine."""
    if_wrong = "give --host an address of this machine, or 0.0.0.0 for all that it has"
    try:
        family, _, _, _, (address, _, *scope) = socket.getaddrinfo(host, 0, type=socket.SOCK_STREAM)[0]
        with socket.socket(family, socket.SOCK_STREAM) as probe:
            probe.bind((address, 0, *scope))
    except socket.gaierror as error:
        raise ConfigError(f"host {host!r} cannot be found: {error.strerror}; {if_wrong}") from error
    except OSError as error:
        raise ConfigError(f"host {host} cannot be listened on: {error.strerror}; {if_wrong}") from error


def with_free_port(settings: Settings, patience_s: float = 0.0) -> Settings:
    """Port 0 becomes a free one.

    Args:
        patience_s: for who holds the port and is about to leave.

    Raises: ConfigError where the port is taken.
    """
    deadline_s = time.monotonic() + patience_s
    while True:
        try:
            return msgspec.structs.replace(settings, port=_bindable(settings))
        except OSError as error:
            if error.errno != errno.EADDRINUSE or time.monotonic() >= deadline_s:
                raise ConfigError(
                    f"port {settings.port} on {settings.host} cannot be used: {error.strerror}; "
                    "choose another with --port"
                ) from error
        time.sleep(LOOK_INTERVAL_S)


def _bindable(settings: Settings) -> int:
    """Raises: OSError."""
    family = socket.AF_INET6 if ":" in settings.host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # as gunicorn: TIME_WAIT is no taker
        probe.bind((settings.host, settings.port))
        return int(probe.getsockname()[1])


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
                f"`trivet serve` runs already on {paths.home}, with pid {holder}; this ends it: kill {holder}"
            ) from None
        write_holder(file.fileno(), str(os.getpid()))
        yield
