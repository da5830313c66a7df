"""`trivet models`: the registry of models."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

import msgspec

from trivet.commands.connecting import absolute_path, add_server_options, chosen_version, connect
from trivet.commands.output import add_json_option, bytes_text, print_json, print_table
from trivet.plugins import Command

if TYPE_CHECKING:
    from trivet.client import Model, Version


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    actions = parser.add_subparsers(metavar="ACTION", required=True)
    listing = actions.add_parser("list", help="list registered models")
    listing.set_defaults(action=_list)
    add = actions.add_parser("add", help="register a folder or a GGUF file of the server's host")
    add.add_argument("path", metavar="PATH", help="a folder or a GGUF file")
    add.add_argument("--name", help="its name (default: the one its files give)")
    add.set_defaults(action=_add)
    show = actions.add_parser("show", help="show a model and its versions")
    show.add_argument("name", metavar="NAME[:VERSION]")
    show.set_defaults(action=_show)
    remove = actions.add_parser("remove", help="forget a model or one version of it; its files stay")
    remove.add_argument("name", metavar="NAME[:VERSION]", help="without a version: all of them")
    remove.set_defaults(action=_remove)
    for action in (listing, add, show):
        add_json_option(action)
    for action in (listing, add, show, remove):
        add_server_options(action)


def _run(given: argparse.Namespace) -> int:
    code: int = given.action(given)
    return code


def _list(given: argparse.Namespace) -> int:
    with connect(given) as client:
        models = client.models.list()
    if given.json:
        print_json(models)
    else:
        print_table(
            ("NAME", "VERSION", "ARCHITECTURE", "WEIGHTS", "SIZE", "CONTEXT", "PATH"),
            [_row(model, version) for model in models for version in model.versions],
        )
    return 0


def _row(model: Model, version: Version) -> list[object]:
    return [
        model.name,
        version.version,
        version.architecture,
        version.quantization,
        bytes_text(version.size_bytes),
        version.context_length,
        version.path,
    ]


def _add(given: argparse.Namespace) -> int:
    with connect(given) as client:
        version = client.models.add(str(absolute_path(given.path)), given.name)
    if given.json:
        print_json(version)
    else:
        size = bytes_text(version.size_bytes)
        print(f"registered version {version.version}: {version.architecture}, {size}")
    return 0


def _show(given: argparse.Namespace) -> int:
    name, colon, number = given.name.partition(":")
    with connect(given) as client:
        model = client.models.get(name)
    if colon:
        model = msgspec.structs.replace(model, versions=(chosen_version(model, number),))
    if given.json:
        print_json(model)
        return 0
    for version in model.versions:
        print(f"{model.name}:{version.version}")
        for field in version.__struct_fields__:
            value = getattr(version, field)
            print(f"  {field:<15} {bytes_text(value) if field == 'size_bytes' else value}")
    return 0


def _remove(given: argparse.Namespace) -> int:
    with connect(given) as client:
        client.models.remove(given.name)
    what = "is" if ":" in given.name else "and all its versions are"
    print(f"{given.name} {what} no longer registered; its files are untouched")
    return 0


COMMANDS = (Command("models", "list, add, show and remove registered models", _add_arguments, _run),)
