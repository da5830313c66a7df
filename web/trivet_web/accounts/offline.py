"""Users, keys, audit log and usage of a home whose server is off: the routes of the server, without a server.

Whoever forgot the admin's password can so set another on the host, also where `serve` does not start.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, contextmanager

from flask import Flask

from trivet.access import management_token
from trivet.config import Settings
from trivet_registry.database import open_database
from trivet_web import error_objects, guard
from trivet_web.accounts.site_accounts import SiteAccounts
from trivet_web.api.management import audit, keys, usage, users
from trivet_web.request_name import name_request


@contextmanager
def offline_accounts(settings: Settings) -> Iterator[tuple[Flask, str]]:
    """The application, and the token that may all. Raises: ConfigError where the registry cannot open."""
    settings.paths.create()
    token = management_token(settings.paths.token_file)
    with closing(open_database(settings.resolved_database_url)) as database:
        app = Flask("trivet_web", static_folder=None)
        app.json.sort_keys = False  # type: ignore[attr-defined]  # of Flask's default provider
        app.before_request(name_request)
        guard.register(app, SiteAccounts.of(settings, database, lambda: token))
        error_objects.register(app)
        for routes in (users, keys, audit, usage):
            app.register_blueprint(routes.blueprint)
        guard.seal(app)
        yield app, token
