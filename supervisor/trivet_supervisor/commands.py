"""Commands of this package: `serve`, `demo`, `stop-all`. Heavy imports happen when one runs."""

from __future__ import annotations

import argparse
import os
import sys
from typing import TYPE_CHECKING

from trivet.plugins import Command

if TYPE_CHECKING:
    from trivet.config import Settings


FOR_ITS_ACCOUNT = 0o077  # files and sockets that serve and its children make are for nobody else


def commands() -> list[Command]:
    """For the hook `trivet_commands`."""
    return [
        Command("serve", "serve models: API, console and supervisor, until Ctrl-C", _add_serve, _serve),
        Command("demo", "serve, launch the demo model and stream one answer", _add_demo, _demo),
        Command(
            "stop-all",
            "end every engine of this home, also without a server",
            _add_stop,
            _stop_all,
            is_listed=False,  # users say `trivet stop --all`
        ),
    ]


def _add_address(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--host", help="address to listen on (default 127.0.0.1)")
    parser.add_argument("--port", type=int, help="port to listen on (default 8000; 0: any free one)")
    parser.add_argument(
        "--insecure",
        action="store_true",
        default=None,
        help="allow an address that other hosts reach, without TLS",
    )
    parser.add_argument("--tls-cert", metavar="FILE", help="serve HTTPS with this certificate (PEM)")
    parser.add_argument("--tls-key", metavar="FILE", help="the key of --tls-cert (PEM, without a password)")


def _add_serve(parser: argparse.ArgumentParser) -> None:
    _add_address(parser)
    parser.add_argument("--demo", action="store_true", help="launch the demo model as well")


def _add_demo(parser: argparse.ArgumentParser) -> None:
    _add_address(parser)
    parser.add_argument("--once", action="store_true", help="stop everything after the answer")


def _add_stop(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--timeout", type=float, metavar="S", help="seconds for running requests (default: drain_timeout_s)"
    )
    parser.add_argument("--now", action="store_true", help="end running requests with an error")


def _settings(given: argparse.Namespace) -> Settings:
    from trivet.config import load_settings

    files = {name: file and os.path.abspath(file) for name, file in _tls_files(given)}
    return load_settings({"host": given.host, "port": given.port, "insecure": given.insecure, **files})


def _tls_files(given: argparse.Namespace) -> list[tuple[str, str | None]]:
    return [("tls_cert", given.tls_cert), ("tls_key", given.tls_key)]


def _serve(given: argparse.Namespace) -> int:
    from trivet_supervisor.serve import serve

    os.umask(FOR_ITS_ACCOUNT)
    return serve(_settings(given), launches_demo=given.demo)


def _demo(given: argparse.Namespace) -> int:
    from trivet_supervisor.serve import serve

    os.umask(FOR_ITS_ACCOUNT)
    return serve(_settings(given), launches_demo=True, chats=True, once=given.once)


def _stop_all(given: argparse.Namespace) -> int:
    from contextlib import closing

    from sqlalchemy.exc import OperationalError

    from trivet.commands.starting_server import is_held
    from trivet.config import load_settings
    from trivet.errors import ConfigError, Conflict, Unavailable
    from trivet_registry.database import open_database
    from trivet_supervisor.client import SupervisorClient
    from trivet_supervisor.direct_stop import (
        KILL_MARGIN_S,
        count_engines,
        end_by_orders,
        end_engines,
        wait_until_confirmed,
        wait_until_none,
        want_nothing,
    )

    settings = load_settings()
    settings.paths.create()
    drain_s = 0.0 if given.now else given.timeout
    limit_s = settings.drain_timeout_s if drain_s is None else drain_s
    supervisor = SupervisorClient(settings.paths)
    try:
        opened = open_database(settings.resolved_database_url)
    except ConfigError as error:
        if supervisor.status() is not None or is_held(settings.paths.lock_file):
            raise  # a serve lives, though it may be too busy to answer
        raise end_by_orders(settings, str(error)) from error
    with closing(opened) as database:
        names, unwritten = [], ""
        try:
            names = want_nothing(database, drain_s)
        except (
            OperationalError
        ) as error:  # a full disk: they end all the same, and the next serve has them again
            unwritten = f"the registry cannot be written: {error.orig}"
        if supervisor.wake() is None:
            try:
                num_ended = end_engines(settings, limit_s)
                print(f"stopped without a supervisor: {count_engines(num_ended)}")
                return 0
            except Conflict:
                print("the supervisor is busy; waiting for it to end the engines", file=sys.stderr)
        if unwritten:
            raise Unavailable(f"{unwritten}; free some room, or end `trivet serve` with Ctrl-C")
        left = wait_until_none(database, limit_s + KILL_MARGIN_S)
        unconfirmed = "" if left else wait_until_confirmed(database)
    if left:
        after_s = limit_s + KILL_MARGIN_S
        print(f"{count_engines(left)} left after {after_s:.0f} s; see trivet ps", file=sys.stderr)
        return 1
    if unconfirmed:
        raise Unavailable(unconfirmed)
    print(f"stopped: {', '.join(names) or 'nothing was running'}")
    return 0
