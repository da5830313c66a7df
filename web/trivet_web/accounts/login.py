"""Logs in and out, and makes the first admin; what pages, API and dialects have in common."""

from __future__ import annotations

import hmac
import math
import secrets
from dataclasses import dataclass

from flask import Response, request
from sqlalchemy.orm import Session

from trivet.access import setup_code
from trivet.errors import AuthenticationError, Conflict, Overloaded, PermissionDenied
from trivet_registry.account_tables import Role, User
from trivet_registry.audit_log import REFUSED, Act, append
from trivet_registry.login_throttle import begin_attempt, block_s, end_good_attempt, take_back
from trivet_registry.tables import utc_now
from trivet_registry.users_store import (
    LIFETIME,
    count_users,
    create_user,
    end_session,
    find_user,
    hash_of,
    open_session,
    set_password_hash,
)
from trivet_web.accounts.acts import record, record_refusal
from trivet_web.accounts.credentials import SESSION_MARK
from trivet_web.accounts.passwords import hash_password, is_outdated, is_password
from trivet_web.accounts.principal import principal_of_request
from trivet_web.accounts.site_accounts import cookie_name, site_accounts
from trivet_web.request_name import request_id


@dataclass(frozen=True, slots=True)
class Login:
    """A session that was just opened; `secret` is its id, which only its client keeps."""

    secret: str
    name: str
    role: str


def log_in(name: str, password: str) -> Login:
    """Raises: AuthenticationError, the same for whatever is wrong; Overloaded after too many attempts."""
    database = site_accounts().database
    with database.reading() as session:
        user = find_user(session, name)
    known = None if user is None or user.disabled_at is not None else user
    is_good = is_guess_right(name, password, None if known is None else known.password_hash)
    newer_hash = hash_password(password) if is_good and known and is_outdated(known.password_hash) else None
    with database.session() as session:
        user = find_user(session, name) if is_good else None
        # A password may have been changed, or a user made anew, while this one was looked at.
        if user is None or known is None or not _is_as_before(user, known):
            record_failed_guess(session, "session.open", None if known is None else known.name)
        else:
            end_good_attempt(session, name, _address(), utc_now())
            if newer_hash is not None:
                set_password_hash(session, user, newer_hash)
            return _open(session, user)
    raise AuthenticationError("name or password is wrong")


def _is_as_before(user: User, earlier: User) -> bool:
    return user.disabled_at is None and (user.id, user.password_hash) == (earlier.id, earlier.password_hash)


def is_guess_right(name: str, password: str, password_hash: str | None) -> bool:
    """Counted; `end_good_attempt` says in the caller's transaction that it was good.

    Raises: Overloaded after too many attempts.
    """
    database, address, now = site_accounts().database, _address(), utc_now()
    with database.reading() as session:
        wait_s = block_s(session, name, address, now)
    if not wait_s:
        with database.session() as session:
            wait_s = begin_attempt(session, name, address, now)
    if wait_s > 0:
        raise Overloaded(
            f"too many attempts to log in; try again in {math.ceil(wait_s)} s",
            retry_after_s=math.ceil(wait_s),
        )
    try:
        return is_password(password, password_hash)
    except Overloaded:
        with database.session() as session:
            take_back(session, name, address)
        raise


def log_out() -> None:
    """End the session of the request, if it is one's."""
    session_hash = principal_of_request().session_hash or ""
    with site_accounts().database.session() as session:
        if end_session(session, session_hash):
            record(session, "session.close", f"session {session_hash[:12]}")


def is_setup_code(code: str) -> bool:
    """Whether it is what the setup link carries."""
    return hmac.compare_digest(code.encode(), setup_code(site_accounts().read_token()).encode())


def set_up(code: str, name: str, password: str) -> Login:
    """Make the first admin and log in.

    Raises: PermissionDenied for another code; Conflict where there is a user; RequestError.
    """
    if not is_setup_code(code):
        error = PermissionDenied("the setup link is wrong; open the one that trivet serve printed")
        record_refusal("nobody", "site.set_up", str(error))
        raise error
    password_hash = hash_password(password)
    with site_accounts().database.session() as session:
        # An entry first: who else sets up waits for this transaction, and then sees its user.
        record(session, "site.set_up", name, actor="the setup link")
        if count_users(session):
            raise Conflict("this site has been set up already; log in")
        user = create_user(session, name, Role.ADMIN, password_hash)
        return _open(session, user)


def with_cookie(response: Response, login: Login) -> Response:
    """The session's id, for this browser only."""
    response.set_cookie(
        cookie_name(),
        login.secret,
        max_age=int(LIFETIME.total_seconds()),
        secure=request.is_secure,
        httponly=True,
        samesite="Lax",
        path="/",
    )
    response.headers["Cache-Control"] = "no-store"
    return response


def without_cookie(response: Response) -> Response:
    """The browser forgets it."""
    response.delete_cookie(cookie_name(), path="/", secure=request.is_secure, httponly=True, samesite="Lax")
    return response


def _address() -> str:
    return request.remote_addr or ""


def _open(session: Session, user: User) -> Login:
    """A new id each time, and the end of the one that the browser had: none can be planted."""
    if earlier := request.cookies.get(cookie_name()):
        end_session(session, hash_of(earlier))
    secret = SESSION_MARK + secrets.token_urlsafe(32)
    agent = request.headers.get("User-Agent", "")
    row = open_session(session, user, secret, _address(), agent)
    record(session, "session.open", f"session {row.hash[:12]}", actor=f"user {user.name}")
    return Login(secret, user.name, user.role)


def record_failed_guess(session: Session, action: str, name: str | None) -> None:
    """A name that nobody has is not kept: it may be a password, typed in the wrong field."""
    target = "somebody unknown" if name is None else f"user {name}"
    append(session, Act("nobody", action, target, None, None, REFUSED, _address(), request_id()))
