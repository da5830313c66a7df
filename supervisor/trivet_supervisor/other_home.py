"""Engines of a home whose registry ours is a copy of, as where a backup was restored beside the site.

Their rows and leases came with the copy. They serve that home's requests, so here they are neither
adopted nor signalled.
"""

from __future__ import annotations

from pathlib import Path

from trivet.access import is_served
from trivet.config import Paths, Settings


def other_home(run_dir: str | None, ours: Path) -> Path | None:
    """The home to which an engine's run directory belongs; None for `ours`, and for one that is gone."""
    if run_dir is None or run_dir == str(ours):
        return None
    folder = Path(run_dir)
    try:
        return None if folder.samefile(ours) else folder.parent
    except FileNotFoundError:  # ours was moved here: nobody else looks after its engines
        return None
    except OSError:  # a folder that is closed to this account is no former place of its home
        return folder.parent


def original_home(run_dir: str | None, settings: Settings) -> Path | None:
    """The home of which this one's registry is a copy, by an engine that it tells of; None where it is none.

    A database server may have the registry of several homes, one after the other: then an engine is ours, but
    where its home is served. With one registry two could not be.
    """
    home = other_home(run_dir, settings.paths.run)
    is_file = settings.resolved_database_url.startswith("sqlite")
    return home if home is None or is_file or is_served(Paths(home)) else None
