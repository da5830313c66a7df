"""`trivet config export|diff|apply`: a site from and to one TOML file."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from trivet.commands.connecting import add_server_options, connect
from trivet.commands.output import note
from trivet.counted import counted
from trivet.errors import ConfigError
from trivet.plugins import Command

if TYPE_CHECKING:
    from trivet.client import Client
    from trivet.commands.site_changes import Step
    from trivet.commands.site_document import Document

DIFFERS = 1  # exit status of `diff`


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    actions = parser.add_subparsers(metavar="ACTION", required=True)
    export = actions.add_parser("export", help="print models, aliases, deployments, and keys without secrets")
    export.set_defaults(action=_export)
    diff = actions.add_parser("diff", help="say what `apply` would do; status 1 where it would do anything")
    diff.set_defaults(action=_diff)
    apply = actions.add_parser("apply", help="show the difference, then make the site as the file says")
    apply.add_argument("--yes", action="store_true", help="do not ask")
    apply.set_defaults(action=_apply)
    for action in (diff, apply):
        action.add_argument("file", type=Path, metavar="FILE", help="TOML, as `export` prints it")
        action.add_argument(
            "--prune", action="store_true", help="also stop deployments and drop aliases that are not in it"
        )
    for action in (export, diff, apply):
        add_server_options(action)


def _run(given: argparse.Namespace) -> int:
    code: int = given.action(given)
    return code


def _export(given: argparse.Namespace) -> int:
    from trivet.commands.site_document import encode, read_site

    with connect(given) as client:
        print(encode(read_site(client)), end="")
    return 0


def _wanted(given: argparse.Namespace) -> Document:
    from trivet.commands.site_document import decode

    try:
        return decode(given.file.read_bytes(), str(given.file))
    except OSError as error:
        raise ConfigError(f"{given.file} cannot be read: {error.strerror}") from error


def _steps(client: Client, wanted: Document, given: argparse.Namespace) -> list[Step]:
    """What makes the site as the file says."""
    from trivet.commands.site_changes import check_owners, steps
    from trivet.commands.site_document import read_site

    site = read_site(client)
    check_owners(client, site, wanted)
    return steps(site, wanted, prunes=given.prune)


def _diff(given: argparse.Namespace) -> int:
    wanted = _wanted(given)
    with connect(given) as client:
        found = _steps(client, wanted, given)
    for step in found:
        print(step.text)
    if not found:
        note("no difference")
    return DIFFERS if found else 0


def _apply(given: argparse.Namespace) -> int:
    wanted = _wanted(given)
    with connect(given) as client:
        found = _steps(client, wanted, given)
        for step in found:
            print(step.text)
        if not found:
            print("the site is as the file says")
            return 0
        if not given.yes and not _is_confirmed():
            note("nothing was changed")
            return 1
        _make(client, found)
    print(f"{counted(len(found), 'change')} made")
    return 0


def _make(client: Client, found: list[Step]) -> None:
    """One after the other; of one that fails it is said which it is, and that what was made before stays."""
    for number, step in enumerate(found):
        try:
            said = step.run(client)
        except BaseException:
            note(f"stopped at: {step.text}")
            note(f"{number} of {counted(len(found), 'change')} made; they stay: apply again to go on")
            raise
        if said:
            print(said, flush=True)


def _is_confirmed() -> bool:
    if not sys.stdin.isatty():
        raise ConfigError("nobody can be asked here; look at the difference, then give --yes")
    return input("make these changes? [y/N] ").strip().lower() in ("y", "yes")


COMMANDS = (Command("config", "a site as one file: export, diff, apply", _add_arguments, _run),)
