"""`python -m trivet_web`: the web server of a site, in the foreground until SIGTERM.

Settings come from `trivet.toml` and the environment as everywhere; these options go first.
"""

from __future__ import annotations

import argparse
import sys
from contextlib import closing

from trivet.access import check_bind, check_users, management_token
from trivet.config import load_settings
from trivet.errors import TrivetError
from trivet_registry.database import open_database
from trivet_registry.users_store import count_users
from trivet_web.server import WebServer, configure_logging

CANNOT_START = 2  # another exit code than a crash: trying again would not help


def main(arguments: list[str] | None = None) -> int:
    """Returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m trivet_web", description=__doc__)
    parser.add_argument("--home", help="folder of the site (TRIVET_HOME)")
    parser.add_argument("--host", help="address to bind (TRIVET_HOST)")
    parser.add_argument("--port", type=int, help="port to bind (TRIVET_PORT)")
    given = parser.parse_args(arguments)
    try:
        settings = load_settings(vars(given))
        check_bind(settings)
        settings.paths.create()
        with (
            closing(open_database(settings.resolved_database_url)) as database,
            database.reading() as session,
        ):
            check_users(settings, count_users(session) > 0)
        management_token(settings.paths.token_file)  # before the workers, which would race for it
    except TrivetError as error:
        print(f"trivet web: {error}", file=sys.stderr)
        return CANNOT_START
    configure_logging(settings.log_level)
    WebServer(settings).run()
    return 0


if __name__ == "__main__":
    sys.exit(main())
