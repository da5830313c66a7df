"""Every request before its view, and every answer after it: Host, Origin, right, security headers.

The right that a route needs is declared at its view (accounts/rights.py); accounts/site_accounts.py finds out
who asks. Pages of other origins may neither read nor change anything here, but those of cross_origin.py.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import wraps
from typing import Any
from urllib.parse import urlsplit

from flask import Flask, Response, current_app, request
from werkzeug.middleware.proxy_fix import ProxyFix

from trivet.access import is_loopback
from trivet.config import Settings
from trivet.errors import PermissionDenied, RequestError
from trivet_web.accounts.acts import is_recorded, record_refusal
from trivet_web.accounts.principal import PRINCIPAL, Principal, check_right
from trivet_web.accounts.rights import Right, check_routes, right_of
from trivet_web.accounts.site_accounts import EXTENSION, SAFE_METHODS, SiteAccounts, site_accounts
from trivet_web.api.request_body import MAX_BODY_BYTES
from trivet_web.cross_origin import CrossOrigin
from trivet_web.request_text import CheckedRequest, check_address
from trivet_web.web_process import web_process

logger = logging.getLogger(__name__)
_ACTS = (Right.OPERATE, Right.ADMINISTER)
_CSP = (
    "default-src 'self'; base-uri 'none'; form-action 'self'; frame-ancestors 'none'; "
    "img-src 'self' data:; object-src 'none'"
)
_HSTS = "max-age=31536000"


def register(app: Flask, accounts: SiteAccounts) -> None:
    """Before the routes, of which `seal` is called when all are there."""
    settings = accounts.settings
    checks_host = settings.allowed_hosts or (is_loopback(settings.host) and settings.auth != "required")
    app.extensions[EXTENSION] = accounts
    app.config["MAX_CONTENT_LENGTH"] = MAX_BODY_BYTES
    app.request_class = CheckedRequest
    pages = CrossOrigin(settings.cors_origins)

    def check() -> Response | None:
        if checks_host:  # a token is what no stranger's page has
            _check_host(request.host, settings)
        if not pages.is_listed():
            _check_origin()
        elif (answer := pages.preflight()) is not None:
            return answer
        check_address()
        _check_right()
        return None

    app.before_request(check)
    app.after_request(_add_headers)
    app.after_request(pages.add_headers)
    if settings.num_proxies:
        n = settings.num_proxies
        app.wsgi_app = ProxyFix(app.wsgi_app, x_for=n, x_proto=n, x_host=n)  # type: ignore[method-assign]


def seal(app: Flask) -> None:
    """Raises: RuntimeError where a route does not say who may use it."""
    check_routes(app)
    for endpoint, view in app.view_functions.items():
        if right_of(view) in (*_ACTS, Right.ACCOUNT):
            app.view_functions[endpoint] = _with_refusals(view)


def _with_refusals(view: Callable[..., Any]) -> Callable[..., Any]:
    """An entry of the audit log for what the view itself refuses, as a key that may more than its maker."""

    @wraps(view)
    def recording(*args: Any, **kwargs: Any) -> Any:
        try:
            return view(*args, **kwargs)
        except PermissionDenied as error:
            if request.method not in SAFE_METHODS and not is_recorded():
                _record_refusal(request.environ[PRINCIPAL], error)
            raise

    return recording


def _check_right() -> None:
    """Raises: AuthenticationError, PermissionDenied, Overloaded, Unavailable."""
    view = current_app.view_functions.get(request.endpoint or "")
    right = Right.NOTHING if view is None else right_of(view)  # without a view it is a 404 or 405
    if right is Right.NOTHING:
        return
    if right is None:  # `seal` was not called
        raise PermissionDenied(f"nobody may use {request.path}: it does not say who")
    principal: Principal | None = request.environ.get(PRINCIPAL)  # of work for somebody, from inside
    if principal is None:
        principal = site_accounts().admit(right)
        request.environ[PRINCIPAL] = principal
    try:
        check_right(principal, right)
    except PermissionDenied as error:
        if right in _ACTS and request.method not in SAFE_METHODS:
            _record_refusal(principal, error)
        raise
    if right is Right.INFER and principal.requests_per_minute is not None:
        web_process().limits.count(principal)


def _record_refusal(principal: Principal, error: PermissionDenied) -> None:
    record_refusal(principal.name, f"{request.method} {request.url_rule}", str(error))


def _check_host(host: str, settings: Settings) -> None:
    """On loopback another Host means that a stranger's page has pointed its own name here (rebinding)."""
    try:
        name = (urlsplit(f"//{host}").hostname or "").lower()
    except ValueError:  # half of an IPv6 address
        name = ""
    if "@" in host:
        name = ""
    known = [each.strip().lower() for each in settings.allowed_hosts.split(",") if each.strip()]
    if not is_loopback(name) and name not in known:
        where = (
            "is bound to loopback; ask for localhost" if not known else "answers to others (allowed_hosts)"
        )
        raise RequestError(f"the Host header is {host!r:.200} and this server {where}", param="Host")


def _check_origin() -> None:
    """Pages of other origins may neither read nor change anything; they may link to the console."""
    origin = request.headers.get("Origin")
    site = request.headers.get("Sec-Fetch-Site")
    scheme, _, host = (origin or "").partition("://")
    # A page that came in the clear may have been changed on its way. A proxy may end TLS before us.
    if host == request.host and not (request.is_secure and scheme == "http"):
        return
    is_navigation = request.headers.get("Sec-Fetch-Mode") == "navigate" and request.method in SAFE_METHODS
    if origin is not None or (site in ("cross-site", "same-site") and not is_navigation):
        raise PermissionDenied(
            f"a page of {origin or 'another site'} may not use this server; open its own console at "
            f"{request.host_url}",
            param="Origin",
        )


def _add_headers(response: Response) -> Response:
    headers = response.headers
    headers["Content-Security-Policy"] = _CSP
    headers["X-Content-Type-Options"] = "nosniff"
    headers["X-Frame-Options"] = "DENY"
    # Of no-referrer, browsers would send our own forms with the Origin null.
    headers["Referrer-Policy"] = "same-origin"
    headers["Cross-Origin-Opener-Policy"] = "same-origin"
    headers["Cross-Origin-Resource-Policy"] = "same-origin"
    if request.is_secure:
        headers["Strict-Transport-Security"] = _HSTS
    if response.mimetype == "application/json":
        headers["Cache-Control"] = "no-store"
    _check_recorded(response)
    return response


def _check_recorded(response: Response) -> None:
    """An act that leaves no entry is a defect of ours; what was done is done."""
    view = current_app.view_functions.get(request.endpoint or "")
    if view is None or request.method in SAFE_METHODS or response.status_code >= 400:
        return
    if right_of(view) in _ACTS and not is_recorded():
        logger.error("act=%s %s left no entry in the audit log", request.method, request.url_rule)
