"""`trivet backup` and `trivet restore`: a site in one file. Heavy imports happen when one runs."""

from __future__ import annotations

import argparse
import os
from pathlib import Path
from typing import TYPE_CHECKING

from trivet.commands.output import bytes_text
from trivet.counted import counted
from trivet.plugins import Command
from trivet_supervisor.commands import FOR_ITS_ACCOUNT

if TYPE_CHECKING:
    from trivet.config import Settings


def commands() -> list[Command]:
    """For the hook `trivet_commands`."""
    return [
        Command("backup", "write this site, which may serve meanwhile, to one file", _add_backup, _backup),
        Command("restore", "make a site from a backup, in an empty home", _add_restore, _restore),
    ]


def _add_backup(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "place", type=Path, metavar="PLACE", help="a new file, or a folder: the file is named after the time"
    )
    parser.add_argument(
        "--without-models", action="store_true", help="leave out the store's files, which sources have"
    )
    parser.add_argument(
        "--keep",
        type=int,
        metavar="N",
        help="remove all but the newest N of the folder, when the new one is there",
    )


def _add_restore(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("file", type=Path, metavar="FILE", help="what `trivet backup` has written")
    parser.add_argument("--check", action="store_true", help="read it through and change nothing")
    parser.add_argument(
        "--database-url", metavar="URL", help="for the registry, instead of what the restored settings say"
    )


def _site() -> Settings:
    """Raises: ConfigError for another account than the home's, even root, whose files it could not open."""
    from trivet.config import load_settings
    from trivet.errors import ConfigError

    settings = load_settings()
    home = settings.paths.home
    if home.exists() and (owner := home.stat().st_uid) != os.geteuid():
        raise ConfigError(
            f"home {home} belongs to uid {owner} and this is uid {os.geteuid()}; run it as that account: "
            f"setpriv --reuid {owner} --clear-groups --regid {home.stat().st_gid} trivet ..."
        )
    return settings


def _backup(given: argparse.Namespace) -> int:
    from trivet.errors import ConfigError
    from trivet_registry.backups.writing import remove_oldest, write_backup

    if given.keep is not None and (given.keep < 1 or not given.place.is_dir()):
        raise ConfigError(f"--keep {given.keep} is for a folder as PLACE, and at least 1")
    made = write_backup(_site(), given.place, with_models=not given.without_models)
    print(f"{made.path}: {counted(made.num_files, 'file')}, {bytes_text(made.size_bytes)}")
    if given.keep is not None:
        for gone in remove_oldest(given.place, given.keep):
            print(f"removed {gone}")
    return 0


def _restore(given: argparse.Namespace) -> int:
    from trivet.errors import ConfigError
    from trivet_registry.backups.restoring import check_backup, restore
    from trivet_supervisor.serve_checks import serve_lock

    if given.check:
        found = check_backup(given.file)
        print(f"{given.file} is whole: {counted(found.num_files, 'file')}, of {found.created_at}")
        return 0
    os.umask(FOR_ITS_ACCOUNT)
    settings = _site()
    if not os.path.exists(given.file):
        raise ConfigError(f"{given.file} does not exist; give the file of `trivet backup`")
    settings.paths.create()
    with serve_lock(settings.paths):
        done = restore(settings, given.file, given.database_url)
    print(f"{settings.paths.home} is as it was at {done.created_at}: {counted(done.num_files, 'file')}")
    print("logins have ended; keys are those of that time: revoke again what was revoked since")
    if done.missing:
        print(f"not here, so add or pull again: {', '.join(done.missing)} (trivet models verify NAME)")
    return 0
