"""The console: one page, its styles and its modules. Everything it shows comes from /platform/v1 and /v1.

Own ES modules and CSS only (static/): nothing is fetched from elsewhere, nothing has to be built. Flask
serves them to be revalidated each time, so an upgrade never leaves a page with half of the old modules.
"""

from __future__ import annotations

from flask import Blueprint, Response, render_template, request

import trivet
from trivet_web.accounts.pages import to_page
from trivet_web.accounts.rights import Right, requires
from trivet_web.accounts.site_accounts import cookie_name, csrf_token, site_accounts
from trivet_web.api.documented import documented

blueprint = Blueprint("console", __name__)


@blueprint.get("/")
@requires(Right.NOTHING)
@documented(media_type="text/html", other_media_type="text/plain")
def page() -> Response:
    """The console, for who asks for a page; for others a sign of life, in the words of Ollama's clients."""
    if "text/html" not in request.headers.get("Accept", ""):
        return Response("Ollama is running", mimetype="text/plain")
    accounts = site_accounts()
    login = accounts.session()
    if login is None and accounts.settings.auth != "off" and accounts.credentials.has_users():
        return to_page("/login")
    secret = request.cookies.get(cookie_name(), "")
    page = render_template(
        "console.html",
        version=trivet.__version__,
        user=None if login is None else login.user_name,
        role=None if login is None else login.role,
        csrf_token=None if login is None else csrf_token(secret),
    )
    response = Response(page, mimetype="text/html")
    response.headers["Cache-Control"] = "no-store" if login else "no-cache"
    return response
