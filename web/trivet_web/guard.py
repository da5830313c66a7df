"""Who may ask what, and what every answer carries: token, Host, Origin, size, security headers.

Until users exist there is one secret: the token in the run directory, which whoever may read that
directory may use. While bound to loopback, inference is open and management needs the token; on any
other bind, everything but liveness and the console's files needs it.
"""

from __future__ import annotations

import hmac
from collections.abc import Callable
from typing import Any, TypeVar
from urllib.parse import urlsplit

from flask import Flask, Response, current_app, request
from werkzeug.datastructures import Headers

from trivet.access import is_loopback
from trivet.config import Settings
from trivet.errors import AuthenticationError, PermissionDenied, RequestError
from trivet_web.api.request_body import MAX_BODY_BYTES

V = TypeVar("V", bound=Callable[..., Any])
MANAGEMENT = "/platform/"
INFERENCE = "/v1/"
_PROTECTED_BEYOND_LOOPBACK = (
    *(MANAGEMENT, INFERENCE, "/tokenize", "/detokenize", "/metrics"),
    *("/api/", "/generate", "/info"),  # of other dialects
)
_OPEN = "/v1/cluster/auth"  # where clients of Xinference ask whether they need a key, without one
_MANAGES = "trivet_manages"  # on a view
_SAFE_METHODS = ("GET", "HEAD", "OPTIONS")
_CSP = (
    "default-src 'self'; base-uri 'none'; form-action 'self'; frame-ancestors 'none'; "
    "img-src 'self' data:; object-src 'none'"
)


def manages(view: V) -> V:
    """Mark a view outside /platform/ that changes what is deployed or registered: it needs the token."""
    setattr(view, _MANAGES, True)
    return view


def is_managing(view: Callable[..., Any] | None) -> bool:
    """Whether it is marked so."""
    return getattr(view, _MANAGES, False) is True


def register(app: Flask, settings: Settings, read_token: Callable[[], str]) -> None:
    """Check every request before its view, and dress every answer."""
    local = is_loopback(settings.host)

    def check() -> None:
        if local and settings.auth != "required":  # a token is what no stranger's page has
            _check_host(request.host)
        _check_origin()
        if _needs_token(settings.auth, local, request.method, request.path):
            _check_token(_given_token(request.headers), read_token())

    app.config["MAX_CONTENT_LENGTH"] = MAX_BODY_BYTES
    app.before_request(check)
    app.after_request(_add_headers)


def _needs_token(auth: str, local: bool, method: str, path: str) -> bool:
    if auth == "off" or path == _OPEN:
        return False
    if path.startswith(MANAGEMENT) or is_managing(current_app.view_functions.get(request.endpoint or "")):
        return True
    if auth == "required" or not local:
        # TGI's clients post to the address itself; read, it is the console.
        return path.startswith(_PROTECTED_BEYOND_LOOPBACK) or (path == "/" and method not in _SAFE_METHODS)
    return False


def _given_token(headers: Headers) -> str:
    """OpenAI's header, or Anthropic's; empty where there is none."""
    scheme, _, given = headers.get("Authorization", "").partition(" ")
    if scheme.lower() == "bearer" and given.strip():
        return given.strip()
    return headers.get("X-Api-Key", "").strip()


def _check_token(given: str, token: str) -> None:
    if not given:
        raise AuthenticationError(
            "this needs the site's token; send Authorization: Bearer with the content of run/token in the "
            "server's home (trivet serve prints a link that carries it)"
        )
    if not hmac.compare_digest(given.encode(), token.encode()):
        raise AuthenticationError("the token is wrong; send the content of run/token in the server's home")


def _check_host(host: str) -> None:
    """On loopback another Host means that a stranger's page has pointed its own name here (rebinding)."""
    name = urlsplit(f"//{host}").hostname or ""
    if not is_loopback(name):
        raise RequestError(
            f"the Host header is {host!r} and this server is bound to loopback; ask for localhost",
            param="Host",
        )


def _check_origin() -> None:
    """Pages of other origins may neither read nor change anything; they may link to the console."""
    origin = request.headers.get("Origin")
    site = request.headers.get("Sec-Fetch-Site")
    if origin is not None and origin.partition("://")[2] == request.host:
        return
    is_navigation = request.headers.get("Sec-Fetch-Mode") == "navigate" and request.method in _SAFE_METHODS
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
    headers["Referrer-Policy"] = "no-referrer"
    headers["Cross-Origin-Opener-Policy"] = "same-origin"
    headers["Cross-Origin-Resource-Policy"] = "same-origin"
    if response.mimetype == "application/json":
        headers["Cache-Control"] = "no-store"
    return response
