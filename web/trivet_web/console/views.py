"""GET / and /console/...: the pages. Who is not logged in goes to the login, on a new site to its setup."""

from __future__ import annotations

from urllib.parse import quote

from flask import Blueprint, Response, request

from trivet.errors import NotFound
from trivet_web.accounts.principal import STRANGER
from trivet_web.accounts.rights import Right, requires
from trivet_web.accounts.site_accounts import site_accounts
from trivet_web.api.documented import documented
from trivet_web.console.navigation import MISSING, PAGES, page_of
from trivet_web.console.rendering import reader, render_in_shell, to_page

HTML = "text/html"

blueprint = Blueprint("console", __name__, template_folder=".")


@blueprint.get("/")
@requires(Right.NOTHING)
@documented(media_type=HTML, other_media_type="text/plain")
def first_page() -> Response:
    """The console, for who asks for a page; for others a sign of life, in the words of Ollama's clients."""
    if HTML not in request.headers.get("Accept", ""):
        return Response("Ollama is running", mimetype="text/plain")
    who = reader()
    if who is not STRANGER and Right.READ not in who.rights:
        return to_page("/console/playground" if Right.INFER in who.rights else "/console/account")
    return _show("overview", None)


@blueprint.get("/console/<page>")
@requires(Right.NOTHING)
@documented(media_type=HTML, failed_media_type=HTML)
def named_page(page: str) -> Response:
    """A page of the console."""
    return _show(page, None)


@blueprint.get("/console/<page>/<path:thing>")
@requires(Right.NOTHING)
@documented(media_type=HTML, failed_media_type=HTML)
def page_of_thing(page: str, thing: str) -> Response:
    """The page of one model, deployment or instance."""
    return _show(page, thing)


def _back() -> str:
    """For the login: which page was asked for, with its filters. The first one it opens anyway."""
    wanted = request.full_path.removesuffix("?")
    return "" if wanted == "/" else f"?next={quote(wanted)}"


def _show(name: str, thing: str | None) -> Response:
    """Raises: NotFound."""
    page = page_of(name, thing)
    if page is None and HTML in request.headers.get("Accept", "") and reader() is not STRANGER:
        return render_in_shell(MISSING, reader(), None, 404)
    if page is None:
        names = ", ".join(one.name for one in PAGES if not one.parent)
        raise NotFound(f"the console has no page {name[:80]!r}; it has {names}", param="page")
    who = reader()
    if who is STRANGER:
        if not site_accounts().credentials.has_users():
            return to_page("/setup")
        return to_page("/login" + _back())
    return render_in_shell(page, who, thing)
