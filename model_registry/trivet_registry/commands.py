"""Commands of this package: `db`. Heavy imports happen when one runs."""

from __future__ import annotations

import argparse

from trivet.counted import counted
from trivet.plugins import Command


def commands() -> list[Command]:
    """For the hook `trivet_commands`."""
    return [Command("db", "the registry's database: try an upgrade, upgrade it", _add_arguments, _run)]


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    actions = parser.add_subparsers(metavar="ACTION", required=True)
    upgrade = actions.add_parser("upgrade", help="bring its tables to this release's; `serve` does it, too")
    upgrade.add_argument(
        "--check", action="store_true", help="try it on a copy, or in a transaction that is undone"
    )
    upgrade.add_argument("--database-url", metavar="URL", help="another than the site's")


def _run(given: argparse.Namespace) -> int:
    from trivet.config import load_settings
    from trivet_registry.upgrading import check_upgrade, upgrade

    settings = load_settings({"database_url": given.database_url})
    settings.paths.create()
    url = settings.resolved_database_url
    done = check_upgrade(url) if given.check else upgrade(url)
    rows = counted(done.num_rows, "row")
    if done.before == done.after:
        print(f"the registry is at {done.after}, the newest revision; {rows}")
    elif given.check:
        print(f"the upgrade from {done.before or 'nothing'} to {done.after} works; {rows} are kept")
    else:
        copy = f"; as it was: {done.backup}" if done.backup else ""
        print(f"upgraded from {done.before or 'nothing'} to {done.after}; {rows} are kept{copy}")
    return 0
