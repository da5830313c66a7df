"""`trivet logs` and `trivet events`: what instances wrote and what happened to them."""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING

from trivet.commands.connecting import add_server_options, connect
from trivet.commands.output import add_json_option, print_json, print_table, shown_on
from trivet.errors import NotFound
from trivet.plugins import Command

if TYPE_CHECKING:
    from trivet.client import Client, Instance


def _add_logs(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("name", metavar="NAME", help="a deployment or an instance, see `trivet ps --all`")
    parser.add_argument("-f", "--follow", action="store_true", help="go on with what is written from now on")
    parser.add_argument(
        "-n", "--tail", type=int, default=200, metavar="LINES", help="lines to begin with (200)"
    )
    which = parser.add_mutually_exclusive_group()
    which.add_argument(
        "--attempt", type=int, metavar="N", help="an earlier start of the instance (1 = first)"
    )
    which.add_argument(
        "--first-crash",
        dest="attempt",
        action="store_const",
        const="first-crash",
        help="the log of its first crash, which is kept whatever follows",
    )
    add_server_options(parser)


def _logs(given: argparse.Namespace) -> int:
    with connect(given) as client:
        instance = newest_instance(client, given.name)
        for piece in client.logs(instance.id, follow=given.follow, attempt=given.attempt, tail=given.tail):
            sys.stdout.write(shown_on(sys.stdout, piece, is_log=True))
            sys.stdout.flush()
    return 0


def newest_instance(client: Client, name: str) -> Instance:
    """The instance with this id, else the deployment's latest one, dead or alive.

    Raises: NotFound naming the deployments and instances there are.
    """
    instances = client.instances.list(ended=True)
    for instance in instances:
        if instance.id == name:
            return instance
    own = [instance for instance in instances if instance.deployment == name]
    if not own:
        known = ", ".join(sorted({instance.deployment for instance in instances})) or "none"
        raise NotFound(
            f"{name!r} is neither an instance nor a deployment with instances; deployments: {known}"
        )
    return max(own, key=lambda i: (i.state != "stopped", i.created_at.timestamp() if i.created_at else 0.0))


def _add_events(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("name", metavar="NAME", nargs="?", help="a deployment (default: all)")
    parser.add_argument("-n", "--limit", type=int, default=100, metavar="N", help="at most so many (100)")
    add_json_option(parser)
    add_server_options(parser)


def _events(given: argparse.Namespace) -> int:
    with connect(given) as client:
        events = client.events(given.name, given.limit)
        if not events and given.name is not None:
            client.deployments.get(given.name)  # of a name that never was there are none, and it is said
    if given.json:
        print_json(events)
        return 0
    rows = [
        (
            f"{event.at:%Y-%m-%d %H:%M:%S}",
            event.deployment,
            event.instance,
            f"{event.source or ''} -> {event.target}" if event.target else event.kind,
            event.reason,
        )
        for event in events
    ]
    print_table(("TIME (UTC)", "DEPLOYMENT", "INSTANCE", "WHAT", "REASON"), rows)
    return 0


COMMANDS = (
    Command("logs", "print the log of a deployment's instance", _add_logs, _logs),
    Command("events", "list what happened to a deployment", _add_events, _events),
)
