"""What `trivet doctor` finds out about a home: settings, folders and their modes, registry, disk, port."""

from __future__ import annotations

import os
import shutil
import socket
import sqlite3
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from trivet.commands.host_checks import Finding
from trivet.commands.output import GIB, bytes_text
from trivet.config import (
    Paths,
    Settings,
    engine_address,
    home_of_environment,
    load_settings,
    process_environment,
    settings_to_environment,
)
from trivet.demo_model import find_demo_model
from trivet.errors import ConfigError, ModelFilesError, TrivetError

if TYPE_CHECKING:
    from trivet.client import Client

WARN_DISK_BYTES = 5 * GIB
FAIL_DISK_BYTES = GIB // 2
ANSWER_TIMEOUT_S = 5.0
OTHER_ACCOUNT = "run this as the account that serves, on a file system that can be written"


def check_site() -> Iterator[Finding]:
    """All findings about the home that the settings name."""
    try:
        settings = load_settings()
    except ConfigError as error:
        settings, used = _without_the_fault()
        yield Finding("settings", "fail", str(error), f"correct it; the checks below use {used}")
    else:
        file = settings.paths.config_file
        used = str(file) if file.exists() else f"defaults (no {file})"
        names = [name for name in settings_to_environment(settings) if name in process_environment()]
        yield Finding("settings", "ok", ", and ".join(filter(None, (used, ", ".join(names)))))
    yield from check_home(settings.paths)
    yield check_disk(settings.paths.home)
    yield check_registry(settings)
    yield check_port(settings)
    yield from check_instances(settings)
    yield check_demo_model()


def _without_the_fault() -> tuple[Settings, str]:
    """As much of the settings as can be had, and what that is."""
    try:
        return load_settings(reads_file=False), "the environment and the defaults"
    except ConfigError:  # the environment is at fault
        home = load_settings(environ=home_of_environment(), reads_file=False).home
        return Settings(home=home), "the defaults, but for the home"


def check_home(paths: Paths) -> Iterator[Finding]:
    """The home can be written, its run directory and token are closed to other accounts."""
    home = paths.home
    if not home.exists():
        parent = next(folder for folder in home.parents if folder.exists())
        if os.access(parent, os.W_OK):
            yield Finding("home", "ok", f"{home} does not exist yet; the first `trivet serve` makes it")
        else:
            yield Finding(
                "home", "fail", f"{home} cannot be made: {parent} is not writable", "set TRIVET_HOME"
            )
    elif not home.is_dir():
        yield Finding("home", "fail", f"{home} is not a folder", "set TRIVET_HOME, or move that file")
    elif not os.access(home, os.W_OK | os.X_OK):
        yield Finding(
            "home", "fail", f"{home} is not writable by this account", "set TRIVET_HOME, or chown it"
        )
    else:
        yield Finding("home", "ok", str(home))
    try:
        engine_address(paths.run, "0" * 16, "beat")
    except ConfigError as error:
        yield Finding("sockets", "fail", str(error))
    else:
        yield Finding("sockets", "ok", f"under {paths.run}")
    yield from _check_closed("run directory", paths.run, 0o700)
    yield from _check_closed("token", paths.token_file, 0o600)


def _check_closed(check: str, path: Path, mode: int) -> Iterator[Finding]:
    try:
        found = path.stat()
    except (FileNotFoundError, NotADirectoryError, PermissionError):
        return  # made by the first `trivet serve`; a home that cannot be read was reported above
    actual = stat.S_IMODE(found.st_mode)
    if actual & ~mode:
        yield Finding(check, "fail", f"{path} has mode {actual:o}", f"chmod {mode:o} {path}")
    elif found.st_uid != os.geteuid():
        yield Finding(check, "warn", f"{path} belongs to uid {found.st_uid}", "use the account that serves")
    else:
        yield Finding(check, "ok", f"mode {actual:o}")


def check_disk(home: Path) -> Finding:
    """Room for logs, the registry and models."""
    folder = next(path for path in (home, *home.parents) if path.exists())
    free = shutil.disk_usage(folder).free
    text = f"{bytes_text(free)} free for {home}"
    if free < FAIL_DISK_BYTES:
        return Finding("disk", "fail", text, "free at least 1 GiB: logs and the registry need it")
    if free < WARN_DISK_BYTES:
        return Finding("disk", "warn", text, "models need several GiB each")
    return Finding("disk", "ok", text)


def check_registry(settings: Settings) -> Finding:
    """SQLite's own check, read-only; another database is opened by `trivet serve` only."""
    url = settings.resolved_database_url
    parts = urlsplit(url)
    if not parts.scheme.startswith("sqlite"):
        return Finding("registry", "ok", f"{parts.scheme} at {parts.hostname}, not opened by this command")
    file = Path(url.partition("///")[2])
    try:
        is_there = file.exists()
    except OSError as error:
        return Finding("registry", "fail", f"{file} cannot be looked at: {error.strerror}", OTHER_ACCOUNT)
    if not is_there:
        return Finding("registry", "ok", f"{file} does not exist yet; the first `trivet serve` makes it")
    try:
        connection = sqlite3.connect(f"{file.absolute().as_uri()}?mode=ro", uri=True)
        try:
            (verdict,) = connection.execute("PRAGMA quick_check(1)").fetchone()
        finally:
            connection.close()
    except sqlite3.OperationalError as error:  # SQLite writes beside the file even to read it
        if os.access(file, os.R_OK) and os.access(file.parent, os.W_OK | os.X_OK):
            return Finding("registry", "fail", f"{file}: {error}", "see whether a process holds it")
        return Finding("registry", "fail", f"{file} may not be read or written here: {error}", OTHER_ACCOUNT)
    except sqlite3.Error as error:
        return Finding("registry", "fail", f"{file}: {error}", "restore it from a backup")
    if verdict != "ok":
        return Finding("registry", "fail", f"{file}: {verdict}", "restore it from a backup")
    others = stat.S_IMODE(file.stat().st_mode) & 0o077
    if others:
        return Finding("registry", "warn", f"{file} is open to other accounts", f"chmod 600 {file}")
    return Finding("registry", "ok", f"{file}, quick_check ok")


def check_port(settings: Settings) -> Finding:
    """The port is free, or it is this home's own server that has it."""
    from trivet.access import local_url
    from trivet.client import Client

    where = f"{settings.host}:{settings.port}"
    family = socket.AF_INET6 if ":" in settings.host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        probe.setsockopt(
            socket.SOL_SOCKET, socket.SO_REUSEADDR, 1
        )  # as the server does: TIME_WAIT is no taker
        try:
            probe.bind((settings.host, settings.port))
        except OSError as error:
            problem = error.strerror or str(error)
        else:
            return Finding("port", "ok", f"{where} is free")
    advice = "set another port: `trivet serve --port N` or TRIVET_PORT"
    if _serves_this_home(settings):
        return Finding("port", "ok", f"{where}: the server of this home answers")
    with Client(local_url(settings), "", timeout_s=ANSWER_TIMEOUT_S) as client:
        if client.health():
            return Finding("port", "warn", f"{where} is taken by another server than this home's", advice)
    return Finding("port", "fail", f"{where}: {problem}", advice)


def _serves_this_home(settings: Settings) -> bool:
    """Whether it is at this port that this home's own server listens: that one takes the home's token."""
    try:
        with _own_client(settings) as client:
            client.status()
        url = settings.paths.url_file.read_text().strip()
    except (OSError, TrivetError):
        return False
    return url.endswith(f":{settings.port}")


def _own_client(settings: Settings) -> Client:
    """Of the server that says to run in this home. Raises: OSError where there is none."""
    from trivet.client import Client

    url = settings.paths.url_file.read_text().strip()
    return Client(url, settings.paths.token_file.read_text().strip(), timeout_s=ANSWER_TIMEOUT_S)


def check_instances(settings: Settings) -> Iterator[Finding]:
    """What the engines of a server that runs warn of."""
    try:
        with _own_client(settings) as client:
            deployments = client.deployments.list()
    except (OSError, TrivetError):
        return  # not running; that is no fault
    for deployment in deployments:
        for instance in deployment.instances:
            if instance.state == "ready":
                for notice in instance.notices:
                    yield Finding(f"instance {instance.id}", "warn", f"{deployment.name}: {notice}")


def check_demo_model() -> Finding:
    """Only `trivet demo` and the benchmarks' default need it."""
    try:
        return Finding("demo model", "ok", str(find_demo_model()))
    except ModelFilesError as error:
        return Finding("demo model", "warn", str(error), "only `trivet demo` and `trivet bench` need it")
