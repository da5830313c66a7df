"""Renders pages: words in the reader's language, the theme they chose, the menu of what they may open."""

from __future__ import annotations

from typing import Any

import msgspec
from flask import Response, render_template, request

import trivet
from trivet_web.accounts.principal import ANYONE_AT_ALL, STRANGER, Principal
from trivet_web.accounts.rights import Right
from trivet_web.accounts.site_accounts import cookie_name, csrf_token, site_accounts
from trivet_web.console.files import file_url, has_file, imports_of
from trivet_web.console.navigation import GROUPS, PAGES, Page
from trivet_web.console.texts import (
    COOKIE,
    LANGUAGES,
    fill,
    language_of_request,
    sentences_of,
    texts_of,
    texts_of_page,
)

HTML = "text/html"
THEME_COOKIE = "trivet_theme"
THEMES = ("light", "dark")
YEAR_S = 365 * 24 * 3600


def to_page(path: str) -> Response:
    """A fixed place of ours, never one that a request names."""
    return Response(status=303, headers={"Location": path, "Cache-Control": "no-store"})


def reader() -> Principal:
    """Who looks at a page: a login, or everybody where `auth` is off; else a stranger."""
    accounts = site_accounts()
    found = accounts.session()
    if found is None:
        return ANYONE_AT_ALL if accounts.settings.auth == "off" else STRANGER
    return found


def render(template: str, page: str, status: int = 200, **values: Any) -> Response:
    """`page` names the words that the template and its modules use."""
    language, theme = language_of_request(), request.cookies.get(THEME_COOKIE, "")
    texts = texts_of(language)

    def translate(key: str, **places: object) -> str:
        return fill(texts[key], places)

    body = render_template(
        template,
        t=translate,
        language=language,
        languages=LANGUAGES,
        theme=theme if theme in THEMES else "",
        file_url=file_url,
        has_file=has_file,
        imports_of=imports_of,
        page=page,
        path=request.path,
        version=trivet.__version__,
        **values,
    )
    response = Response(body, status, mimetype=HTML)
    response.headers["Cache-Control"] = "no-store"
    if request.args.get("language") in LANGUAGES:
        response.set_cookie(COOKIE, language, max_age=YEAR_S, samesite="Lax", secure=request.is_secure)
    return response


def render_in_shell(page: Page, who: Principal, thing: str | None, status: int = 200) -> Response:
    """A page of navigation.py, with everything around it."""
    may_open = Right.NOTHING is page.right or page.right in who.rights
    name = page.name if may_open else "forbidden"
    secret = request.cookies.get(cookie_name(), "")
    rights = sorted(who.rights)
    return render(
        f"pages/{name}/page.html",
        name,
        status if may_open else 403,
        thing=thing,
        needed_right=page.right,
        parent=page.parent,
        menu=[(group, [one for one in PAGES if one.group == group and _sees(who, one)]) for group in GROUPS],
        active=page.parent or page.name,
        user=who.user_name,
        role=who.role,
        rights=rights,
        csrf_token=csrf_token(secret) if who.session_hash else "",
        data=_data(name, who, thing, rights),
    )


def _sees(who: Principal, page: Page) -> bool:
    return page.right is Right.NOTHING or page.right in who.rights


def _data(page: str, who: Principal, thing: str | None, rights: list[Right]) -> str:
    """What modules read: see base/page_data.js."""
    language = language_of_request()
    words = texts_of(language)
    return msgspec.json.encode(
        {
            "page": page,
            "thing": thing,
            "user": who.user_name or None,
            "role": who.role or None,
            "rights": rights,
            "language": language,
            "texts": texts_of_page(language, page),
            "sentences": sentences_of(language),
            "pages": [
                {"name": one.name, "path": one.path, "key": one.key, "title": words[f"shell.page.{one.name}"]}
                for one in PAGES
                if not one.parent and _sees(who, one)
            ],
        }
    ).decode()
