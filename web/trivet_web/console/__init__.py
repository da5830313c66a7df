"""The console: one page, its styles and its modules. Everything it shows comes from /platform/v1 and /v1.

Own ES modules and CSS only: nothing is fetched from elsewhere, nothing has to be built.
"""

from __future__ import annotations

from flask import Blueprint, Response, render_template, send_from_directory

import trivet

blueprint = Blueprint("console", __name__, template_folder="../templates")
STATIC = "static"


@blueprint.get("/")
def page() -> Response:
    """The console."""
    response = Response(render_template("console.html", version=trivet.__version__), mimetype="text/html")
    response.headers["Cache-Control"] = "no-cache"
    return response


@blueprint.get("/static/<path:name>")
def static_file(name: str) -> Response:
    """Revalidated each time, so that an upgrade never leaves a page with half of the old modules."""
    response = send_from_directory(f"../{STATIC}", name)
    response.headers["Cache-Control"] = "no-cache"
    return response
