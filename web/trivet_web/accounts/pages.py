"""The pages before the console: setup and login. Plain forms, which need no JavaScript."""

from __future__ import annotations

import re

from flask import Blueprint, Response, request

from trivet.errors import Overloaded, RequestError, TrivetError
from trivet_web.accounts.login import (
    Login,
    is_setup_code,
    log_in,
    log_out,
    set_up,
    with_cookie,
    without_cookie,
)
from trivet_web.accounts.passwords import MIN_LENGTH
from trivet_web.accounts.rights import Right, requires
from trivet_web.accounts.site_accounts import site_accounts
from trivet_web.api.documented import documented
from trivet_web.console.rendering import HTML, render, to_page

blueprint = Blueprint("account_pages", __name__)
FORM = "application/x-www-form-urlencoded"
_NOT_SAME = "the two passwords are not the same; type the same one twice"
_CONSOLE_PAGE = re.compile(r"(?:/|/console/[a-z]+(?:/[A-Za-z0-9._:%-]+)*)(?:\?[A-Za-z0-9._~%=&:+,-]*)?")


@blueprint.get("/login")
@requires(Right.NOTHING)
@documented(media_type=HTML, failed_media_type=HTML, query={"next": str})
def login_page() -> Response:
    """The form; whoever is logged in goes on to the console."""
    if site_accounts().session() is not None:
        return to_page("/")
    return _page("login", next=_wanted_page())


@blueprint.post("/login")
@requires(Right.NOTHING)
@documented(media_type=HTML, failed_media_type=HTML, body=dict[str, str], body_media_type=FORM, status=303)
def login() -> Response:
    """Log in, for browsers."""
    name = request.form.get("name", "")
    try:
        return _logged_in(log_in(name, request.form.get("password", "")), _wanted_page())
    except TrivetError as error:
        return _refused("login", error, name=name[:64], next=_wanted_page())


@blueprint.post("/logout")
@requires(Right.ACCOUNT)
@documented(media_type=HTML, failed_media_type=HTML, body=dict[str, str], body_media_type=FORM, status=303)
def logout() -> Response:
    """End the session; the form carries its CSRF token."""
    log_out()
    return without_cookie(to_page("/login"))


@blueprint.get("/setup")
@requires(Right.NOTHING)
@documented(media_type=HTML, failed_media_type=HTML, query={"token": str})
def setup_page() -> Response:
    """The form for the first admin, to who has the link; once there is one, the login."""
    if site_accounts().credentials.has_users():
        return to_page("/login")
    code = request.args.get("token", "")
    return _page("setup", code=code, has_code=is_setup_code(code), min_length=MIN_LENGTH)


@blueprint.post("/setup")
@requires(Right.NOTHING)
@documented(media_type=HTML, failed_media_type=HTML, body=dict[str, str], body_media_type=FORM, status=303)
def setup() -> Response:
    """Make the first admin, who is then logged in."""
    form = request.form
    code, name = form.get("token", ""), form.get("name", "")
    shown = {"code": code, "has_code": True, "name": name[:64], "min_length": MIN_LENGTH}
    if form.get("password", "") != form.get("again", ""):
        return _page("setup", 400, error=RequestError(_NOT_SAME, param="again"), **shown)
    try:
        return _logged_in(set_up(code, name, form.get("password", "")), "/")
    except TrivetError as error:
        return _refused("setup", error, **shown)


def _logged_in(login: Login, path: str) -> Response:
    return with_cookie(to_page(path), login)


def _wanted_page() -> str:
    """Where the login was asked for: a page of the console, and nothing else that an address may name."""
    wanted = request.values.get("next", "")
    return wanted if _CONSOLE_PAGE.fullmatch(wanted) else "/"


def _refused(page: str, error: TrivetError, **values: object) -> Response:
    response = _page(page, error.status, error=error, **values)
    if isinstance(error, Overloaded):
        response.headers["Retry-After"] = str(error.retry_after_s)
    return response


def _page(page: str, status: int = 200, **values: object) -> Response:
    return render(f"pages/{page}/page.html", page, status, **values)
