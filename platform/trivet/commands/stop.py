"""`trivet stop` and `trivet drain`: end a deployment without cutting more answers than asked."""

from __future__ import annotations

import argparse
import time
from typing import TYPE_CHECKING

from trivet.commands.connecting import add_server_options, connect
from trivet.commands.output import note
from trivet.commands.staleness import StalenessWatch
from trivet.counted import counted
from trivet.errors import ConfigError, Conflict, NotFound, TrivetError, Unavailable
from trivet.plugins import Command, load_plugins

if TYPE_CHECKING:
    from trivet.client import Client, Instance

POLL_INTERVAL_S = 0.3
KILL_MARGIN_S = 60.0  # past the drain deadline: signals, exit of the process, the supervisor's next look
DRAIN_TIMEOUT_S = 600.0
STOP_ALL = "stop-all"  # a plugin's command that takes our --now and --timeout


def _add_stop(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("name", metavar="NAME", nargs="?", help="the deployment, see `trivet ps`")
    parser.add_argument("--all", action="store_true", help="everything of this home, also without a server")
    _add_common(parser)
    group = parser.add_mutually_exclusive_group()
    group.add_argument("--now", action="store_true", help="end running requests with an error")
    group.add_argument(
        "--timeout", type=float, metavar="S", help="seconds for running requests (default: the site's)"
    )


def _add_drain(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("name", metavar="NAME", help="the deployment, see `trivet ps`")
    _add_common(parser)
    parser.add_argument(
        "--timeout",
        type=float,
        default=DRAIN_TIMEOUT_S,
        metavar="S",
        help=f"seconds for running requests (default {DRAIN_TIMEOUT_S:.0f})",
    )


def _add_common(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--no-wait", action="store_true", help="return at once instead of when it has ended")
    add_server_options(parser)


def _stop(given: argparse.Namespace) -> int:
    if given.all == (given.name is not None):
        raise ConfigError("give either the NAME of a deployment or --all")
    if given.all:
        return _stop_all(given)
    return _end(given, 0.0 if given.now else given.timeout)


def _stop_all(given: argparse.Namespace) -> int:
    """Works without a server, so it is not asked of one: the supervisor's package offers it."""
    offered = {command.name: command for command in load_plugins(check_backends=False).commands}
    if STOP_ALL not in offered:
        raise Unavailable("nothing that is installed here can run engines, so there is nothing to stop")
    return offered[STOP_ALL].run(given)


def _drain(given: argparse.Namespace) -> int:
    return _end(given, given.timeout)


def _end(given: argparse.Namespace, drain_timeout_s: float | None) -> int:
    with connect(given) as client:
        client.deployments.stop(given.name, drain_timeout_s)
        if given.no_wait:
            print(f"{given.name} is stopping")
            return 0
        wait_until_stopped(client, given.name, drain_timeout_s)
    print(f"{given.name} is stopped")
    return 0


def wait_until_stopped(client: Client, name: str, drain_timeout_s: float | None) -> None:
    """Return when no instance is left; on the way it says how many requests still run.

    Without `drain_timeout_s` an instance may drain as long as the supervisor lets it: the site's setting
    is not known here.

    Raises: TrivetError at the deadline, naming what is left; Conflict as `_left`.
    """
    begun_s = time.monotonic()
    deadline_s = begun_s + (drain_timeout_s or 0.0) + KILL_MARGIN_S
    staleness = StalenessWatch(client)
    told = -1
    while left := _left(client, name):
        running = sum(i.load.num_running + i.load.num_waiting for i in left if i.load)
        if running not in (told, 0):
            note(f"{name}: {counted(running, 'request')} to finish")
        told = running
        now_s = time.monotonic()
        if drain_timeout_s is None and any(i.state == "draining" for i in left):
            deadline_s = now_s + KILL_MARGIN_S
        if now_s > deadline_s:
            states = ", ".join(f"{i.id} {i.state}" for i in left)
            raise TrivetError(
                f"{name} has not ended after {now_s - begun_s:.0f} s ({states}); see `trivet events {name}`"
            )
        staleness.turn()
        time.sleep(POLL_INTERVAL_S)


def _left(client: Client, name: str) -> list[Instance]:
    """Raises: Conflict where someone else has launched it again."""
    try:
        deployment = client.deployments.get(name)
    except NotFound:
        return []
    if deployment.desired == "running":
        raise Conflict(f"{name} was launched again while its end was waited for; see `trivet events {name}`")
    return [instance for instance in deployment.instances if instance.state not in ("stopped", "failed")]


COMMANDS = (
    Command("stop", "end a deployment: drain its requests, then stop its instances", _add_stop, _stop),
    Command("drain", "take no new requests, wait for the running ones, then stop", _add_drain, _drain),
)
