"""`trivet update`: change a deployment while it serves."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, cast

from trivet.commands.connecting import (
    add_settings_option,
    connect,
    given_settings,
    model_argument,
    with_path_hint,
)
from trivet.commands.launch import add_waiting_options, finish
from trivet.commands.output import note
from trivet.errors import ConfigError, ModelNotFound
from trivet.plugins import Command

if TYPE_CHECKING:
    from trivet.client import DeploymentChanges

UPDATES = "`trivet update {name} ...` with other values, or the old ones, ends this update"


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("name", metavar="NAME", help="the deployment, see `trivet ps`")
    parser.add_argument(
        "--model", metavar="MODEL", help="another model or version: name, name:version, name:alias, a path"
    )
    parser.add_argument(
        "--backend", help="cpu, cuda, ascend, auto, or several by preference: ascend,cuda,cpu"
    )
    parser.add_argument("--device", help="uid or index of a device; any: no certain one")
    parser.add_argument("--replicas", type=int, metavar="N", help="number of instances")
    parser.add_argument("--priority", type=int, metavar="P", help="the lower is placed first")
    parser.add_argument("--fallback", metavar="NAME", help="deployment that helps out when it is full; none")
    add_settings_option(parser)
    parser.add_argument(
        "--unset", action="append", default=[], metavar="KEY", help="a setting that gets its default again"
    )
    add_waiting_options(parser)


def _run(given: argparse.Namespace) -> int:
    changes = _changes(given)
    if not changes:
        raise ConfigError("nothing is to be changed; see trivet update --help")
    with connect(given) as client:
        before = client.deployments.get(given.name)
        try:
            after = client.deployments.update(given.name, changes)
        except ModelNotFound as error:
            raise with_path_hint(error, given.model) from None
        if after.generation == before.generation:
            return finish(client, after, given, way_out=UPDATES)
        note(f"{given.name}: new instances replace the running ones as they become ready")
        return finish(client, after, given, {instance.id for instance in before.instances}, UPDATES)


def _changes(given: argparse.Namespace) -> DeploymentChanges:
    """As the server takes them."""
    settings: dict[str, str | None] = {**given_settings(given), **dict.fromkeys(given.unset)}
    changes = {
        "model": None if given.model is None else model_argument(given.model),
        "backend": given.backend,
        "replicas": given.replicas,
        "priority": given.priority,
        "settings": settings or None,
    }
    changed: dict[str, object] = {key: value for key, value in changes.items() if value is not None}
    for key, none in (("device", "any"), ("fallback", "none")):
        value = getattr(given, key)
        if value is not None:
            changed[key] = None if value == none else value
    return cast("DeploymentChanges", changed)


COMMANDS = (Command("update", "change a deployment while it serves", _add_arguments, _run),)
