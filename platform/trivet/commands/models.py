"""`trivet models`: the registry of models."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

import msgspec

from trivet.commands import model_files
from trivet.commands.connecting import absolute_path, add_server_options, connect
from trivet.commands.output import add_json_option, age_text, bytes_text, print_json, print_table
from trivet.errors import RequestError
from trivet.plugins import Command

if TYPE_CHECKING:
    from trivet.client import Client, Model, Version


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.set_defaults(action=_list, json=False, url=None, ca_file=None, api_key_file=None)
    actions = parser.add_subparsers(metavar="ACTION", help="default: list")
    listing = actions.add_parser("list", help="list registered models")
    listing.set_defaults(action=_list)
    add = actions.add_parser("add", help="register a folder or a GGUF file of the server's host")
    add.add_argument("path", metavar="PATH", help="a folder or a GGUF file")
    add.add_argument("--name", help="its name (default: the one its files give)")
    add.add_argument("--copy", action="store_true", help="into the site's store; else it is used where it is")
    add.add_argument("--no-verify", action="store_true", help="do not read it through for its SHA-256 now")
    add.set_defaults(action=_add)
    show = actions.add_parser("show", help="show a model and its versions")
    show.add_argument("name", metavar="NAME[:VERSION]", help="a version or an alias; without: all versions")
    show.set_defaults(action=_show)
    remove = actions.add_parser("remove", help="forget a model or one version of it; its files stay")
    remove.add_argument("name", metavar="NAME[:VERSION]", help="without a version: all of them")
    remove.set_defaults(action=_remove)
    alias = actions.add_parser("alias", help="list, make, move and roll back aliases, such as prod")
    alias.add_argument("name", metavar="NAME[:ALIAS]", help="the model, and which of its aliases")
    alias.add_argument("version", nargs="?", metavar="VERSION", help="where it shall point")
    change = alias.add_mutually_exclusive_group()
    change.add_argument("--roll-back", action="store_true", help="point it at what it pointed at before")
    change.add_argument("--remove", action="store_true", help="forget the alias")
    alias.set_defaults(action=_alias)
    for action in (listing, add, show, alias):
        add_json_option(action)
    for action in (listing, add, show, remove, alias):
        add_server_options(action)
    model_files.add_actions(actions)


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
            ("NAME", "VERSION", "ALIASES", "ARCHITECTURE", "WEIGHTS", "SIZE", "CONTEXT", "PATH"),
            [_row(model, version) for model in models for version in model.versions],
        )
    return 0


def _row(model: Model, version: Version) -> list[object]:
    return [
        model.name,
        version.version,
        ",".join(version.aliases),
        version.architecture,
        version.quantization,
        bytes_text(version.size_bytes),
        version.context_length,
        version.path,
    ]


def _add(given: argparse.Namespace) -> int:
    with connect(given) as client:  # the server reads, and perhaps copies, all of its files first
        version = client.with_options(timeout_s=24 * 3600.0).models.add(
            str(absolute_path(given.path)), given.name, verify=not given.no_verify, copy=given.copy
        )
    if given.json:
        print_json(version)
    else:
        size = bytes_text(version.size_bytes)
        print(f"registered version {version.version}: {version.architecture}, {size}")
    return 0


def _show(given: argparse.Namespace) -> int:
    with connect(given) as client:
        if ":" in given.name:
            details = client.models.version(given.name)
            model = msgspec.structs.replace(client.models.get(details.name), versions=(details,))
        else:
            model = client.models.get(given.name)
    if given.json:
        print_json(model)
        return 0
    for version in model.versions:
        print(f"{model.name}:{version.version}")
        for field in version.__struct_fields__:
            print(f"  {field:<15} {_shown(field, getattr(version, field))}")
    return 0


def _shown(field: str, value: object) -> str:
    if field == "size_bytes" and isinstance(value, int):
        return bytes_text(value)
    if field == "files" and isinstance(value, tuple):
        return "".join(f"\n    {file.sha256 or '-':<64}  {file.name}" for file in value)
    if field == "spec" and isinstance(value, dict):
        return ", ".join(f"{name} {size:,}" for name, size in value.items()) or "-"
    if isinstance(value, tuple):
        return ", ".join(value) or "-"
    return "-" if value is None else str(value)


def _alias(given: argparse.Namespace) -> int:
    model, _, alias = given.name.partition(":")
    if not alias and (given.version or given.roll_back or given.remove):
        raise RequestError(f"{given.name!r} names no alias; write {model}:ALIAS, such as {model}:prod")
    if given.version and (given.roll_back or given.remove):
        raise RequestError("VERSION is given, and --roll-back or --remove; leave one of them out")
    with connect(given) as client:
        if not alias:
            return _list_aliases(client, model, given)
        if given.remove:
            client.aliases.remove(model, alias)
            print(f"{given.name} is forgotten")
            return 0
        if not given.version and not given.roll_back:
            return _alias_history(client, model, alias, given)
        moved = (
            client.aliases.roll_back(model, alias)
            if given.roll_back
            else client.aliases.set(model, alias, given.version)
        )
    if given.json:
        print_json(moved)
    else:
        print(f"{model}:{alias} is version {moved.version}; deployments that follow it are being updated")
    return 0


def _list_aliases(client: Client, model: str, given: argparse.Namespace) -> int:
    aliases = client.aliases.list(model)
    if given.json:
        print_json(aliases)
    else:
        print_table(
            ("ALIAS", "VERSION", "SINCE"), [(a.alias, a.version, age_text(a.updated_at)) for a in aliases]
        )
    return 0


def _alias_history(client: Client, model: str, alias: str, given: argparse.Namespace) -> int:
    moves = client.aliases.history(model, alias)
    if given.json:
        print_json(moves)
    else:
        print_table(("WHEN", "FROM", "TO"), [(age_text(m.at), m.from_version, m.to_version) for m in moves])
    return 0


def _remove(given: argparse.Namespace) -> int:
    with connect(given) as client:
        client.models.remove(given.name)
    what = "is" if ":" in given.name else "and all its versions are"
    print(f"{given.name} {what} no longer registered; its files are untouched")
    return 0


COMMANDS = (Command("models", "registered models, their versions and aliases", _add_arguments, _run),)
