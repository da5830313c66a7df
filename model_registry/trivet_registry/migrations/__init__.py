"""Alembic migrations of the registry, run by `trivet_registry.database`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from trivet.errors import ConfigError

if TYPE_CHECKING:
    from sqlalchemy import Connection

# Known without reading the scripts, so that opening a current registry need not import Alembic (0.2 s).
HEAD = "0016"


def upgrade_to_head(connection: Connection) -> None:
    """Bring the tables to HEAD inside the caller's transaction.

    Raises: ConfigError where a newer Trivet has upgraded the registry already.
    """
    from alembic import command
    from alembic.config import Config
    from alembic.util import CommandError

    config = Config()
    config.set_main_option("script_location", str(Path(__file__).parent).replace("%", "%%"))
    config.set_main_option("path_separator", "os")
    config.attributes["connection"] = connection
    try:
        command.upgrade(config, "head")
    except CommandError as error:
        raise ConfigError(
            f"the registry cannot be upgraded to {HEAD}: {error}; a newer Trivet may have upgraded it: "
            "install that version, or restore the registry from a backup"
        ) from error
