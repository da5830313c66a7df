"""What a web process holds for accounts, and the checks that lead to a principal."""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Callable
from dataclasses import dataclass
from typing import cast

from flask import current_app, request

from trivet.access import is_loopback
from trivet.config import Settings
from trivet.errors import AuthenticationError, PermissionDenied
from trivet_registry.database import Database
from trivet_web.accounts.credentials import Credentials
from trivet_web.accounts.principal import ANYONE, ANYONE_AT_ALL, Principal
from trivet_web.accounts.refused_acts import RefusedActs
from trivet_web.accounts.rights import OPEN, Right

EXTENSION = "trivet.accounts"
CSRF_HEADER, CSRF_FIELD = "X-CSRF-Token", "csrf_token"
SAFE_METHODS = ("GET", "HEAD", "OPTIONS")


@dataclass(frozen=True, slots=True)
class SiteAccounts:
    """Of one application."""

    settings: Settings
    database: Database
    credentials: Credentials
    read_token: Callable[[], str]
    refused_acts: RefusedActs

    @classmethod
    def of(cls, settings: Settings, database: Database, read_token: Callable[[], str]) -> SiteAccounts:
        return cls(settings, database, Credentials(database, read_token), read_token, RefusedActs())

    def is_open(self) -> bool:
        """Whether inference needs no secret: on loopback, while nobody has set this site up.

        Raises: Unavailable where the registry cannot be read.
        """
        if self.settings.auth != "auto":
            return self.settings.auth == "off"
        return is_loopback(self.settings.host) and not self.credentials.has_users()

    def admit(self, right: Right) -> Principal:
        """Whoever asks, if the route is open to them at all; what they may is checked by `check_right`.

        Raises: AuthenticationError, PermissionDenied for a cookie without its CSRF token, Unavailable.
        """
        given = given_secret()
        if given and (found := self.credentials.find(given)) is not None:
            return found
        if not given and (found := self._of_cookie(right)) is not None:
            return found
        if self.settings.auth == "off":
            return ANYONE_AT_ALL
        if right in OPEN and self.is_open():
            return ANYONE
        raise AuthenticationError(_WRONG if given else _MISSING)

    def session(self) -> Principal | None:
        """Of the cookie, without any other check: to show a page, never to do something."""
        secret = request.cookies.get(cookie_name())
        return self.credentials.find(secret) if secret else None

    def _of_cookie(self, right: Right) -> Principal | None:
        secret = request.cookies.get(cookie_name())
        found = self.credentials.find(secret) if secret else None
        if found is None or secret is None or found.session_hash is None:
            return None
        if request.method in SAFE_METHODS and right is not Right.INFER:
            return found
        given = request.headers.get(CSRF_HEADER) or _field()
        if given and hmac.compare_digest(given.encode(), csrf_token(secret).encode()):
            return found
        if right is Right.INFER:
            return None  # as if there were none: a page of ours sends it, a page of others cannot
        raise PermissionDenied(
            f"a login needs the header {CSRF_HEADER} to change something; GET /platform/v1/session tells it",
            param=CSRF_HEADER,
        )


_MISSING = (
    "this needs an API key or a login; send Authorization: Bearer with a key (an admin makes it: trivet keys "
    "create), or with the content of run/token in the server's home"
)
_WRONG = (
    "the key is wrong, has expired or was revoked; send another (trivet keys create), or the content of "
    "run/token in the server's home"
)


def site_accounts() -> SiteAccounts:
    """Those of this application."""
    return cast("SiteAccounts", current_app.extensions[EXTENSION])


def given_secret() -> str:
    """OpenAI's header, or Anthropic's; empty where there is none."""
    scheme, _, given = request.headers.get("Authorization", "").partition(" ")
    if scheme.lower() == "bearer" and given.strip():
        return given.strip()
    return request.headers.get("X-Api-Key", "").strip()


def cookie_name() -> str:
    """`__Host-` binds a cookie to this host and to TLS; browsers refuse that name on plain HTTP."""
    return "__Host-trivet" if request.is_secure else "trivet_session"


def csrf_token(secret: str) -> str:
    """Of a session, from its id: only who has the session's cookie or was told it can know it."""
    return hashlib.sha256(b"csrf\0" + secret.encode()).hexdigest()


def _field() -> str:
    """Of a form without JavaScript."""
    is_form = request.mimetype == "application/x-www-form-urlencoded"
    return request.form.get(CSRF_FIELD, "") if is_form else ""
